// AMX: quantized weights, sixteen tokens at a time. Included inside namespace tenon::amx after tile_config.inl and fine.inl,
// and by tests/tiles.cpp over tiles of its own.
//
// A group's codes are unpacked once into `scratch`, as signed bytes without their offset: 512 bytes a block, which is a B
// tile of 8 rows. One product a block (two for halves of Q6_K), then the scales, in the same order and with the same
// roundings as the other levels. From its loads to its last store a product takes longer than scaling a block does, so
// products run AHEAD blocks before their sums are read.

constexpr int AHEAD = 2, SLOTS = 4;  // blocks whose sums are held; SLOTS: more than AHEAD

template <WeightType TYPE>
constexpr int HALVES = TYPE == WeightType::q6_k ? 2 : 1;

// Tile 0: sums, 1: tokens, 2: weights.
TENON_INLINE void configure(int tokens, int token_bytes) {
    TileConfig config;
    config.rows[0] = config.rows[1] = static_cast<uint8_t>(tokens);
    config.column_bytes[0] = config.column_bytes[2] = 64;
    config.column_bytes[1] = static_cast<uint16_t>(token_bytes);
    config.rows[2] = static_cast<uint8_t>(token_bytes / 4);
    load_config(config);
}

// A step's codes without their offset, as signed bytes.
template <WeightType TYPE, int S>
TENON_INLINE Codes signed_step(const uint8_t* block) {
    using F = Format<TYPE>;
    constexpr int OFFSET = TYPE == WeightType::q8_0 ? 0 : F::OFFSET;
    const Codes step = codes_of<F::BITS, S>(block, block + F::LOW);
    return OFFSET ? cminus(step, OFFSET) : step;
}

template <WeightType TYPE, int S>
TENON_INLINE void unpack_step(const uint8_t* block, uint8_t* codes) {
    cstore(codes + 64 * S, signed_step<TYPE, S>(block));
}

template <WeightType TYPE>
static void unpack_group(const uint8_t* group, int64_t blocks, uint8_t* codes) {
    using F = Format<TYPE>;
    const int64_t ahead = blocks * F::BYTES + blocks / 8 * F::HEAD;
    for (int64_t b = 0; b < blocks; ++b, codes += 512, group += F::BYTES) {
        if (F::IS_SUPER && b % 8 == 0) group += F::HEAD;
        ask_for(group, ahead, F::BYTES);
        unpack_step<TYPE, 0>(group, codes);
        unpack_step<TYPE, 1>(group, codes);
        unpack_step<TYPE, 2>(group, codes);
        unpack_step<TYPE, 3>(group, codes);
        unpack_step<TYPE, 4>(group, codes);
        unpack_step<TYPE, 5>(group, codes);
        unpack_step<TYPE, 6>(group, codes);
        unpack_step<TYPE, 7>(group, codes);
    }
    stores_are_done();
}

// sums [HALVES, 16, 16] of one block.
template <WeightType TYPE>
TENON_INLINE void tile_dot(const int8_t* x, int64_t stride, const uint8_t* codes, int32_t* sums) {
#pragma GCC unroll 2
    for (int h = 0; h < HALVES<TYPE>; ++h) {
        _tile_zero(0);
        _tile_loadd(1, x + 16 * h, stride);
        _tile_loadd(2, codes + 256 * h, 64);
        _tile_dpbssd(0, 1, 2);
        _tile_stored(0, sums + 256 * h, 64);
    }
}

// The scales of the block at `group`, which moves on to the next; a minimum with the sign that it is added with.
template <WeightType TYPE>
TENON_INLINE BlockScales next_scales(const uint8_t*& group, int64_t b, Rows& d, Rows& dmin) {
    using F = Format<TYPE>;
    if constexpr (F::IS_SUPER) {
        if (b % 8 == 0) {
            d = rhalf(group);
            if constexpr (F::HAS_MIN) dmin = rhalf(group + 32);
            group += F::HEAD;
        }
    }
    BlockScales s = scales_of<TYPE>(group, d, dmin);
    if constexpr (F::IS_SUPER && F::HAS_MIN) s.minimum = rscale(s.minimum, -1.0f);
    group += F::BYTES;
    return s;
}

// out [count, 16], from token `t` on, of a group whose codes are unpacked. WHOLE: count is 16.
template <WeightType TYPE, bool WHOLE>
static void multiply_tile(const uint8_t* group, const Activations& x, int64_t t, int count, float* out,
                          const uint8_t* unpacked) {
    using F = Format<TYPE>;
    const int64_t columns = x.columns, blocks = columns / BLOCK;
    const int8_t* codes = x.codes + t * columns;
    const float* scales = x.scales + t * blocks;
    const float* weights = x.sums + t * blocks;
    alignas(64) int32_t sums[SLOTS][HALVES<TYPE> * 256];
    Rows acc[16];
#pragma GCC unroll 16
    for (int m = 0; m < 16; ++m) acc[m] = rzero();
    Rows d = rzero(), dmin = rzero();
    for (int64_t b = -AHEAD; b < blocks; ++b) {
        const int64_t then = b + AHEAD;
        if (then < blocks) tile_dot<TYPE>(codes + then * BLOCK, columns, unpacked + 512 * then, sums[then % SLOTS]);
        if (b < 0) continue;
        const BlockScales s = next_scales<TYPE>(group, b, d, dmin);
        const int32_t* first = sums[b % SLOTS];
#pragma GCC unroll 16
        for (int m = 0; m < 16; ++m) {
            if (!WHOLE && m >= count) break;
            const float unit = scales[16 * b + m];
            acc[m] = rfma(rof(sload(first + 16 * m)), rscale(s.scale, unit), acc[m]);
            if constexpr (HALVES<TYPE> == 2) acc[m] = rfma(rof(sload(first + 256 + 16 * m)), rscale(s.second, unit), acc[m]);
            if constexpr (F::HAS_MIN) acc[m] = rfmas(s.minimum, weights[16 * b + m], acc[m]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < 16; ++m) {
        if (!WHOLE && m >= count) break;
        rstore(out + m * GROUP, acc[m]);
    }
}

template <WeightType TYPE>
static void multiply_tiles(const uint8_t* group, const Activations& x, int64_t tokens, float* out, uint8_t* scratch) {
    unpack_group<TYPE>(group, x.columns / BLOCK, scratch);
    const int64_t whole = tokens / 16 * 16;
    const int rest = static_cast<int>(tokens - whole);
    if (whole > 0) configure(16, 32 / HALVES<TYPE>);
    for (int64_t t = 0; t < whole; t += 16) multiply_tile<TYPE, true>(group, x, t, 16, out + t * GROUP, scratch);
    if (rest > 0) {
        configure(rest, 32 / HALVES<TYPE>);
        multiply_tile<TYPE, false>(group, x, whole, rest, out + whole * GROUP, scratch);
    }
    _tile_release();
}

// 256 high + low.
TENON_INLINE Rows joined(const int32_t* high, const int32_t* low) {
    return rof(sadd(sleft<8>(sload(high)), sload(low)));
}

// int16 activations as high and low int8 codes: two products a block, joined before the scales. one: its first token of x.
template <WeightType TYPE, bool WHOLE>
static void multiply_fine_tile(const uint8_t* group, const Fine& x, int64_t one, int count, float* out,
                               const uint8_t* unpacked) {
    using F = Format<TYPE>;
    const int64_t blocks = x.columns / BLOCK;
    alignas(64) int32_t sums[SLOTS][2][HALVES<TYPE> * 256];
    Rows acc[16];
#pragma GCC unroll 16
    for (int m = 0; m < 16; ++m) acc[m] = rzero();
    Rows d = rzero(), dmin = rzero();
    for (int64_t b = -AHEAD; b < blocks; ++b) {
        const int64_t then = b + AHEAD;
        if (then < blocks) {
            const int64_t at = (then * x.tokens + one) * BLOCK;
            tile_dot<TYPE>(x.high + at, BLOCK, unpacked + 512 * then, sums[then % SLOTS][0]);
            tile_dot<TYPE>(x.low + at, BLOCK, unpacked + 512 * then, sums[then % SLOTS][1]);
        }
        if (b < 0) continue;
        const BlockScales s = next_scales<TYPE>(group, b, d, dmin);
        const int32_t *high = sums[b % SLOTS][0], *low = sums[b % SLOTS][1];
        const float* units = x.units + b * x.tokens + one;
        const float* weights = x.sums + b * x.tokens + one;
#pragma GCC unroll 16
        for (int m = 0; m < 16; ++m) {
            if (!WHOLE && m >= count) break;
            acc[m] = rfma(rscale(joined(high + 16 * m, low + 16 * m), units[m]), s.scale, acc[m]);
            if constexpr (HALVES<TYPE> == 2)
                acc[m] = rfma(rscale(joined(high + 256 + 16 * m, low + 256 + 16 * m), units[m]), s.second, acc[m]);
            if constexpr (F::HAS_MIN) acc[m] = rfmas(s.minimum, weights[m], acc[m]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < 16; ++m) {
        if (!WHOLE && m >= count) break;
        rstore(out + m * GROUP, acc[m]);
    }
}

template <WeightType TYPE>
static void multiply_fine_tiles(const uint8_t* group, const Fine& x, int64_t first, int64_t tokens, float* out,
                                uint8_t* scratch) {
    unpack_group<TYPE>(group, x.columns / BLOCK, scratch);
    const int64_t whole = tokens / 16 * 16;
    const int rest = static_cast<int>(tokens - whole);
    if (whole > 0) configure(16, 32 / HALVES<TYPE>);
    for (int64_t t = 0; t < whole; t += 16)
        multiply_fine_tile<TYPE, true>(group, x, first + t, 16, out + t * GROUP, scratch);
    if (rest > 0) {
        configure(rest, 32 / HALVES<TYPE>);
        multiply_fine_tile<TYPE, false>(group, x, first + whole, rest, out + whole * GROUP, scratch);
    }
    _tile_release();
}
