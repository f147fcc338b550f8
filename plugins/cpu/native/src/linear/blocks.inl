// One block (16 rows x 32 columns) of each quantized type against M tokens: integer sums, then scaled into floats.
// Included inside namespace tenon::TENON_LEVEL, after bytes.inl.
//
// A token's sum over a block does not depend on M, and blocks are added in order: tokens get the same bits in any batch.
//
// While the first tokens are multiplied with a group, the next group is asked for: groups follow each other in memory, but
// the hardware's own look-ahead ends at a page, and a group is read once a step, from memory.

// The codes of step S of a block with four low bits and more in `high` (packed.h).
template <int BITS, int S>
TENON_INLINE Codes codes_of(const uint8_t* low, const uint8_t* high) {
    if constexpr (BITS == 8) {
        return cload(low + 64 * S);
    } else {
        const Codes pair = cload(low + 64 * (S & 3));
        const Codes four_bits = cand(S < 4 ? pair : cright<4>(pair), 15);
        if constexpr (BITS == 5) {
            const Codes bits = cload(high);
            if constexpr (S <= 4) return cor(four_bits, cand(cleft<4 - S>(bits), 16));
            else return cor(four_bits, cand(cright<S - 4>(bits), 16));
        } else if constexpr (BITS == 6) {
            const Codes bits = cload(high + 64 * (S >> 2));
            constexpr int shift = 4 - 2 * (S & 3);
            if constexpr (shift >= 0) return cor(four_bits, cand(cleft<shift>(bits), 48));
            else return cor(four_bits, cand(cright<-shift>(bits), 48));
        } else {
            return four_bits;
        }
    }
}

// sums[m] = dot product of steps S, S + 4 and so on: all eight of a block, or with `HALF` 0 or 1 four of them.
template <int BITS, int M>
struct BlockDot {
    // Steps that 16-bit pairs can hold.
    static constexpr int HOLD = BITS == 4 ? 8 : BITS == 5 ? 4 : 2;

    template <int S>
    TENON_INLINE void step(const uint8_t* low, const uint8_t* high, const int8_t* x, int64_t stride, Part* part) {
        const Codes w = codes_of<BITS, S>(low, high);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) part[m] = pstep(part[m], w, x + m * stride + 4 * S);
    }

    template <int S>
    TENON_INLINE void step8(const uint8_t* low, const int8_t* x, int64_t stride, Sum* sum) {
        const Codes w = csigned(codes_of<8, S>(low, nullptr));
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sum[m] = sstep(sum[m], w, x + m * stride + 4 * S);
    }

    TENON_INLINE void drain(Part* part, Sum* sum) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            sum[m] = sadd(sum[m], pdrain(part[m]));
            part[m] = szero();
        }
    }

    TENON_INLINE void all(const uint8_t* low, const uint8_t* high, const int8_t* x, int64_t stride, Sum* sum) {
        if constexpr (BITS == 8) {
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) sum[m] = szero();
            step8<0>(low, x, stride, sum);
            step8<1>(low, x, stride, sum);
            step8<2>(low, x, stride, sum);
            step8<3>(low, x, stride, sum);
            step8<4>(low, x, stride, sum);
            step8<5>(low, x, stride, sum);
            step8<6>(low, x, stride, sum);
            step8<7>(low, x, stride, sum);
        } else {
            Part part[M];
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) part[m] = szero();
            step<0>(low, high, x, stride, part);
            step<4>(low, high, x, stride, part);
            step<1>(low, high, x, stride, part);
            step<5>(low, high, x, stride, part);
            if constexpr (NARROW && HOLD == 4) {
#pragma GCC unroll 16
                for (int m = 0; m < M; ++m) {
                    sum[m] = pdrain(part[m]);
                    part[m] = szero();
                }
            }
            step<2>(low, high, x, stride, part);
            step<6>(low, high, x, stride, part);
            step<3>(low, high, x, stride, part);
            step<7>(low, high, x, stride, part);
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m)
                sum[m] = NARROW && HOLD == 4 ? sadd(sum[m], pdrain(part[m])) : pdrain(part[m]);
        }
    }

    // Six bits: the sixteen columns of half H.
    template <int H>
    TENON_INLINE void half(const uint8_t* low, const uint8_t* high, const int8_t* x, int64_t stride, Sum* sum) {
        Part part[M];
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) part[m] = szero();
        step<4 * H>(low, high, x, stride, part);
        step<4 * H + 1>(low, high, x, stride, part);
        if constexpr (NARROW) {
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) {
                sum[m] = pdrain(part[m]);
                part[m] = szero();
            }
        }
        step<4 * H + 2>(low, high, x, stride, part);
        step<4 * H + 3>(low, high, x, stride, part);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sum[m] = NARROW ? sadd(sum[m], pdrain(part[m])) : pdrain(part[m]);
    }
};

// Where a type's parts lie in a block of 32 columns, and how its codes become weights.
template <WeightType TYPE>
struct Format {
    static constexpr bool Q4 = TYPE == WeightType::q4_0 || TYPE == WeightType::q4_1 || TYPE == WeightType::q4_k;
    static constexpr bool Q5 = TYPE == WeightType::q5_0 || TYPE == WeightType::q5_1 || TYPE == WeightType::q5_k;
    static constexpr int BITS = Q4 ? 4 : Q5 ? 5 : TYPE == WeightType::q6_k ? 6 : 8;
    static constexpr bool IS_SUPER =
        TYPE == WeightType::q4_k || TYPE == WeightType::q5_k || TYPE == WeightType::q6_k;
    static constexpr bool HAS_MIN = TYPE == WeightType::q4_1 || TYPE == WeightType::q5_1 ||
                                    TYPE == WeightType::q4_k || TYPE == WeightType::q5_k;
    static constexpr int OFFSET = TYPE == WeightType::q4_0   ? 8
                                  : TYPE == WeightType::q5_0 ? 16
                                  : TYPE == WeightType::q6_k ? 32
                                  : TYPE == WeightType::q8_0 ? SIGNED_OFFSET
                                                             : 0;
    static constexpr int LOW = BITS == 8 ? 512 : 256;                   // bytes of low codes
    static constexpr int META = LOW + (BITS == 5 ? 64 : BITS == 6 ? 128 : 0);  // where scales begin
    static constexpr int HEAD = !IS_SUPER ? 0 : HAS_MIN ? 64 : 32;
    static constexpr int BYTES = META + (IS_SUPER || !HAS_MIN ? 32 : 64);
};

// Add one block to acc[m]. block: its codes; d, dmin: of its super-block (K types).
template <WeightType TYPE, int M>
TENON_INLINE void add_block(const uint8_t* block, Rows d, Rows dmin, const int8_t* x, int64_t stride,
                            const float* scales, const float* sums, int64_t scales_stride, const int32_t* halves,
                            int64_t halves_stride, Rows* acc) {
    using F = Format<TYPE>;
    using Dot = BlockDot<F::BITS, M>;
    const uint8_t* high = block + F::LOW;
    const uint8_t* meta = block + F::META;
    Sum sum[M];
    if constexpr (TYPE == WeightType::q6_k) {
        Dot::template half<0>(block, high, x, stride, sum);
        const Rows first = rmul(d, rsigned(meta));
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m)
            acc[m] = rfma(rof(sminus(sum[m], 32 * halves[m * halves_stride])),
                          rscale(first, scales[m * scales_stride]), acc[m]);
        Dot::template half<1>(block, high, x, stride, sum);
        const Rows second = rmul(d, rsigned(meta + 16));
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m)
            acc[m] = rfma(rof(sminus(sum[m], 32 * halves[m * halves_stride + 1])),
                          rscale(second, scales[m * scales_stride]), acc[m]);
        return;
    }
    Dot::all(block, high, x, stride, sum);
    Rows scale, minimum = rzero();
    if constexpr (F::IS_SUPER) {
        scale = rmul(d, rbytes(meta));
        minimum = rmul(dmin, rbytes(meta + 16));
    } else {
        scale = rhalf(meta);
        if constexpr (F::HAS_MIN) minimum = rhalf(meta + 32);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const int32_t total = F::OFFSET ? halves[m * halves_stride] + halves[m * halves_stride + 1] : 0;
        const Sum whole = F::OFFSET ? sminus(sum[m], F::OFFSET * total) : sum[m];
        acc[m] = rfma(rof(whole), rscale(scale, scales[m * scales_stride]), acc[m]);
        if constexpr (F::HAS_MIN) {
            const float weight = sums[m * scales_stride];
            acc[m] = rfmas(minimum, F::IS_SUPER ? -weight : weight, acc[m]);
        }
    }
}

// Float weights are asked for so many bytes before they are read. Groups follow each other in memory, so the end of one
// asks for the start of the next.
constexpr int64_t DENSE_AHEAD = 4096;

// Bytes of memory that are needed soon; any address may be asked for.
TENON_INLINE void ask_for(const uint8_t* at, int64_t ahead, int bytes) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(at) + static_cast<uintptr_t>(ahead);
#pragma GCC unroll 16
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<uintptr_t>(i)));
}

// out [M, 16]: a packed group times M tokens, from token `first` on. ASKS: for the next group.
template <WeightType TYPE, int M, bool ASKS = false>
static void multiply_tokens(const uint8_t* group, const Activations& x, int64_t first, float* out) {
    using F = Format<TYPE>;
    const int64_t columns = x.columns, blocks = columns / BLOCK;
    const int8_t* codes = x.codes + first * columns;
    const float* scales = x.scales + first * blocks;
    const float* sums = x.sums + first * blocks;
    const int32_t* halves = x.halves + first * blocks * 2;
    const int64_t ahead = blocks * F::BYTES + blocks / 8 * F::HEAD;
    Rows acc[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = rzero();
    Rows d = rzero(), dmin = rzero();
    for (int64_t b = 0; b < blocks; ++b) {
        if constexpr (F::IS_SUPER) {
            if (b % 8 == 0) {
                d = rhalf(group);
                if constexpr (F::HAS_MIN) dmin = rhalf(group + 32);
                group += F::HEAD;
            }
        }
        if constexpr (ASKS) ask_for(group, ahead, F::BYTES);
        add_block<TYPE, M>(group, d, dmin, codes + b * BLOCK, columns, scales + b, sums + b, blocks, halves + 2 * b,
                           2 * blocks, acc);
        group += F::BYTES;
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) rstore(out + m * GROUP, acc[m]);
}

template <WeightType TYPE>
static void multiply_blocks(const uint8_t* group, const Activations& x, int64_t tokens, float* out) {
    // With AVX2 six tokens of four bits just fit: twelve sums, two of codes, one of activations, one of products.
    constexpr int TILE = TENON_LEVEL_NUMBER >= 2 ? 8 : TENON_LEVEL_NUMBER == 0 ? 1 : Format<TYPE>::BITS == 4 ? 6 : 4;
    int64_t t = 0;
    if (tokens >= TILE) {
        multiply_tokens<TYPE, TILE, true>(group, x, 0, out);
        t = TILE;
    }
    for (; t + TILE <= tokens; t += TILE) multiply_tokens<TYPE, TILE>(group, x, t, out + t * GROUP);
    if constexpr (TILE > 4)
        for (; t + 4 <= tokens; t += 4) multiply_tokens<TYPE, 4>(group, x, t, out + t * GROUP);
    if constexpr (TILE > 2)
        for (; t + 2 <= tokens; t += 2) multiply_tokens<TYPE, 2>(group, x, t, out + t * GROUP);
    for (; t < tokens; ++t) multiply_tokens<TYPE, 1>(group, x, t, out + t * GROUP);
}
