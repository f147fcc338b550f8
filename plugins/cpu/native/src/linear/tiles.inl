// AMX: sixteen tokens at a time. Included inside namespace tenon::amx, after blocks.inl, dense.inl and fine.inl.
//
// Quantized: a group's codes are unpacked once into `scratch`, 512 bytes a block, which is a B tile of 8 rows; one
// product a block (twice for halves of Q6_K), then the scales, in the same order and with the same roundings as the
// other levels.
//
// GCC 12's _tile_loadconfig declares 8 of the 64 bytes as its input, so the rest may be optimized away: hence the asm.

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {};
    uint8_t rows[16] = {};
};

TENON_INLINE void load_config(const TileConfig& config) {
    asm volatile("ldtilecfg %0" ::"m"(*reinterpret_cast<const unsigned char(*)[64]>(&config)));
}

// Tiles 0, 1: sums; 2: tokens, 3: weights.
TENON_INLINE void configure(int tokens, int token_bytes) {
    TileConfig config;
    config.rows[0] = config.rows[1] = config.rows[2] = static_cast<uint8_t>(tokens);
    config.column_bytes[0] = config.column_bytes[1] = config.column_bytes[3] = 64;
    config.column_bytes[2] = static_cast<uint16_t>(token_bytes);
    config.rows[3] = static_cast<uint8_t>(token_bytes / 4);
    load_config(config);
}

template <WeightType TYPE, int S>
TENON_INLINE void unpack_step(const uint8_t* block, uint8_t* codes) {
    using F = Format<TYPE>;
    cstore(codes + 64 * S, codes_of<F::BITS, S>(block, block + F::LOW));
}

template <WeightType TYPE>
static void unpack_group(const uint8_t* group, int64_t blocks, uint8_t* codes) {
    using F = Format<TYPE>;
    for (int64_t b = 0; b < blocks; ++b, codes += 512, group += F::BYTES) {
        if (F::IS_SUPER && b % 8 == 0) group += F::HEAD;
        unpack_step<TYPE, 0>(group, codes);
        unpack_step<TYPE, 1>(group, codes);
        unpack_step<TYPE, 2>(group, codes);
        unpack_step<TYPE, 3>(group, codes);
        unpack_step<TYPE, 4>(group, codes);
        unpack_step<TYPE, 5>(group, codes);
        unpack_step<TYPE, 6>(group, codes);
        unpack_step<TYPE, 7>(group, codes);
    }
}

template <WeightType TYPE>
TENON_INLINE void tile_dot(const int8_t* x, int64_t stride, const uint8_t* codes, int32_t* sums) {
    _tile_zero(0);
    _tile_loadd(2, x, stride);
    _tile_loadd(3, codes, 64);
    if constexpr (TYPE == WeightType::q8_0) _tile_dpbssd(0, 2, 3);
    else _tile_dpbsud(0, 2, 3);
    _tile_stored(0, sums, 64);
}

// 254 high + low.
TENON_INLINE Sum joined(const int32_t* high, const int32_t* low) {
    const __m512i h = _mm512_load_si512(high);
    const __m512i most = _mm512_sub_epi32(_mm512_slli_epi32(h, 8), _mm512_slli_epi32(h, 1));
    return _mm512_add_epi32(most, _mm512_load_si512(low));
}

template <WeightType TYPE>
static void multiply_tiles(const uint8_t* group, const Activations& x, int64_t tokens, float* out, uint8_t* scratch) {
    using F = Format<TYPE>;
    constexpr int OFFSET = TYPE == WeightType::q8_0 ? 0 : F::OFFSET;
    const int64_t columns = x.columns, blocks = columns / BLOCK;
    alignas(64) int32_t sums[16 * 16];
    unpack_group<TYPE>(group, blocks, scratch);
    for (int64_t t = 0; t < tokens; t += 16) {
        const int count = static_cast<int>(tokens - t < 16 ? tokens - t : 16);
        const int8_t* codes = x.codes + t * columns;
        const float* scales = x.scales + t * blocks;
        const int32_t* halves = x.halves + t * blocks * 2;
        const uint8_t* at = group;
        configure(count, TYPE == WeightType::q6_k ? 16 : 32);
        Rows acc[16];
#pragma GCC unroll 16
        for (int m = 0; m < 16; ++m) acc[m] = rzero();
        Rows d = rzero(), dmin = rzero();
        for (int64_t b = 0; b < blocks; ++b, at += F::BYTES) {
            if constexpr (F::IS_SUPER) {
                if (b % 8 == 0) {
                    d = rhalf(at);
                    if constexpr (F::HAS_MIN) dmin = rhalf(at + 32);
                    at += F::HEAD;
                }
            }
            const uint8_t* meta = at + F::META;
            if constexpr (TYPE == WeightType::q6_k) {
                for (int h = 0; h < 2; ++h) {
                    tile_dot<TYPE>(codes + b * BLOCK + 16 * h, columns, scratch + 512 * b + 256 * h, sums);
                    const Rows scale = rmul(d, rsigned(meta + 16 * h));
#pragma GCC unroll 16
                    for (int m = 0; m < 16; ++m) {
                        if (m >= count) break;
                        const Sum sum = sminus(_mm512_load_si512(sums + 16 * m), 32 * halves[m * 2 * blocks + 2 * b + h]);
                        acc[m] = rfma(rof(sum), rscale(scale, scales[m * blocks + b]), acc[m]);
                    }
                }
                continue;
            }
            tile_dot<TYPE>(codes + b * BLOCK, columns, scratch + 512 * b, sums);
            Rows scale, minimum = rzero();
            if constexpr (F::IS_SUPER) {
                scale = rmul(d, rbytes(meta));
                minimum = rmul(dmin, rbytes(meta + 16));
            } else {
                scale = rhalf(meta);
                if constexpr (F::HAS_MIN) minimum = rhalf(meta + 32);
            }
#pragma GCC unroll 16
            for (int m = 0; m < 16; ++m) {
                if (m >= count) break;
                const float unit = scales[m * blocks + b];
                const int32_t total = halves[m * 2 * blocks + 2 * b] + halves[m * 2 * blocks + 2 * b + 1];
                const Sum sum = _mm512_load_si512(sums + 16 * m);
                acc[m] = rfma(rof(OFFSET ? sminus(sum, OFFSET * total) : sum), rscale(scale, unit), acc[m]);
                if constexpr (F::HAS_MIN) {
                    const float weight = unit * static_cast<float>(total);
                    acc[m] = rfmas(minimum, F::IS_SUPER ? -weight : weight, acc[m]);
                }
            }
        }
#pragma GCC unroll 16
        for (int m = 0; m < 16; ++m) {
            if (m >= count) break;
            rstore(out + (t + m) * GROUP, acc[m]);
        }
    }
    _tile_release();
}

// int16 activations as high and low int8 codes: two products a block, joined before the scales.
template <WeightType TYPE>
static void multiply_fine_tiles(const uint8_t* group, const Fine& x, int64_t first, int64_t tokens, float* out,
                                uint8_t* scratch) {
    using F = Format<TYPE>;
    const int64_t blocks = x.columns / BLOCK;
    constexpr int HALVES = TYPE == WeightType::q6_k ? 2 : 1;
    alignas(64) int32_t high[HALVES][16 * 16], low[HALVES][16 * 16];
    unpack_group<TYPE>(group, blocks, scratch);
    for (int64_t t = 0; t < tokens; t += 16) {
        const int count = static_cast<int>(tokens - t < 16 ? tokens - t : 16);
        const uint8_t* at = group;
        configure(count, 32 / HALVES);
        Rows acc[16];
#pragma GCC unroll 16
        for (int m = 0; m < 16; ++m) acc[m] = rzero();
        Rows d = rzero(), dmin = rzero();
        for (int64_t b = 0; b < blocks; ++b, at += F::BYTES) {
            if constexpr (F::IS_SUPER) {
                if (b % 8 == 0) {
                    d = rhalf(at);
                    if constexpr (F::HAS_MIN) dmin = rhalf(at + 32);
                    at += F::HEAD;
                }
            }
            const BlockScales s = scales_of<TYPE>(at, d, dmin);
            const int64_t one = b * x.tokens + first + t;
            for (int h = 0; h < HALVES; ++h) {
                tile_dot<TYPE>(x.high + one * BLOCK + 16 * h, BLOCK, scratch + 512 * b + 256 * h, high[h]);
                tile_dot<TYPE>(x.low + one * BLOCK + 16 * h, BLOCK, scratch + 512 * b + 256 * h, low[h]);
            }
#pragma GCC unroll 16
            for (int m = 0; m < 16; ++m) {
                if (m >= count) break;
                const Sum sum = joined(high[0] + 16 * m, low[0] + 16 * m);
                const Sum second = HALVES == 2 ? joined(high[HALVES - 1] + 16 * m, low[HALVES - 1] + 16 * m) : sum;
                acc[m] = scaled<TYPE>(acc[m], sum, second, s, x.units[one + m], x.sums[one + m], x.totals + 2 * (one + m));
            }
        }
#pragma GCC unroll 16
        for (int m = 0; m < 16; ++m) {
            if (m >= count) break;
            rstore(out + (t + m) * GROUP, acc[m]);
        }
    }
    _tile_release();
}
