// One row of a packed weight as floats: the lookup of an embedding. Included inside namespace tenon::TENON_LEVEL.

TENON_INLINE float half_at(const uint8_t* p, int lane) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * lane, 2);
    return f16_to_f32(bits);
}

template <WeightType TYPE>
static void expand_blocks(const uint8_t* group, int lane, int64_t columns, float* values) {
    using F = Format<TYPE>;
    constexpr int offset = TYPE == WeightType::q8_0 ? 0 : F::OFFSET;
    float d = 0, dmin = 0;
    for (int64_t b = 0; b < columns / BLOCK; ++b, group += F::BYTES, values += BLOCK) {
        if (F::IS_SUPER && b % 8 == 0) {
            d = half_at(group, lane);
            if (F::HAS_MIN) dmin = half_at(group + 32, lane);
            group += F::HEAD;
        }
        const uint8_t* meta = group + F::META;
        for (int s = 0; s < 8; ++s) {
            float scale, minimum = 0;
            if constexpr (TYPE == WeightType::q6_k) {
                scale = d * static_cast<float>(static_cast<int8_t>(meta[(s >> 2) * 16 + lane]));
            } else if constexpr (F::IS_SUPER) {
                scale = d * meta[lane];
                minimum = -(dmin * meta[16 + lane]);
            } else {
                scale = half_at(meta, lane);
                if (F::HAS_MIN) minimum = half_at(meta + 32, lane);
            }
            for (int i = 0; i < 4; ++i) {
                const int byte = 4 * lane + i;
                int code;
                if constexpr (F::BITS == 8) {
                    code = static_cast<int8_t>(group[64 * s + byte]);
                } else {
                    code = group[64 * (s & 3) + byte] >> (s < 4 ? 0 : 4) & 15;
                    if constexpr (F::BITS == 5) code |= (group[F::LOW + byte] >> s & 1) << 4;
                    if constexpr (F::BITS == 6)
                        code |= (group[F::LOW + 64 * (s >> 2) + byte] >> 2 * (s & 3) & 3) << 4;
                }
                const float value = scale * static_cast<float>(code - offset);
                values[4 * s + i] = F::HAS_MIN ? value + minimum : value;
            }
        }
    }
}

template <WeightType TYPE>
static void expand_dense(const uint8_t* group, int lane, int64_t columns, float* values) {
    for (int64_t c = 0; c < columns; ++c) {
        if constexpr (TYPE == WeightType::f32) {
            std::memcpy(values + c, group + (16 * c + lane) * 4, 4);
        } else {
            uint16_t bits;
            const int64_t at = TYPE == WeightType::f16 ? 16 * c + lane : 32 * (c / 2) + 2 * lane + c % 2;
            std::memcpy(&bits, group + 2 * at, 2);
            values[c] = TYPE == WeightType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
        }
    }
}
