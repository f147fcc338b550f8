// Quantized weights times int16 activations: a block of 32 columns is unpacked once and multiplied with every token.
// Included inside namespace tenon::TENON_LEVEL, after blocks.inl and pairs.inl.
//
// x = unit q, unit = max|x| / 32639 in blocks of 32 columns; q = 256 high + low, both int8, is what tiles multiply with.
// Codes of a block are in the order of `Pairs`: columns 0, 2, 1, 3, 4, 6, 5, 7 and so on. Sums of a block are exact in
// int32 (134 million at most), then added in order: a token has the same bits in any batch.

constexpr float FINE_CODES = 32639.0f;  // 127 * 256 + 127: of one more, `high` would be 128

// codes [32] in the order of Pairs of v * by, total: sums over 16 columns; high, low: [32] in the columns' order, or null.
TENON_INLINE void round_fine(const float* v, float by, int16_t* codes, int32_t* total, int8_t* high, int8_t* low) {
#if TENON_LEVEL_NUMBER >= 2
    for (int i = 0; i < BLOCK; i += 16) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v + i), _mm512_set1_ps(by)));
        const __m256i narrow = _mm512_cvtepi32_epi16(q);
        const __m256i ordered = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(narrow, 0xd8), 0xd8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), ordered);
        total[i >> 4] = _mm512_reduce_add_epi32(q);
        if (high == nullptr) continue;
        const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(q));  // its low byte
    }
#elif TENON_LEVEL_NUMBER == 1
    for (int i = 0; i < BLOCK; i += 16) {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(v + i), _mm256_set1_ps(by)));
        const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(v + i + 8), _mm256_set1_ps(by)));
        const __m256i narrow = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        const __m256i ordered = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(narrow, 0xd8), 0xd8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), ordered);
        const __m256i eight = _mm256_add_epi32(a, b);
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        total[i >> 4] = _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
    (void)high, (void)low;  // of levels with tiles
#else
    total[0] = total[1] = 0;
    for (int i = 0; i < BLOCK; ++i) {
        const auto q = static_cast<int16_t>(std::nearbyint(v[i] * by));
        codes[(i & ~3) | (i & 1) << 1 | (i >> 1 & 1)] = q;
        total[i >> 4] += q;
        if (high == nullptr) continue;
        high[i] = static_cast<int8_t>((q + 128) >> 8);
        low[i] = static_cast<int8_t>(q - 256 * high[i]);
    }
#endif
}

// One token: block b at codes[b * step * 32], units[b * step], sums[b * step] = unit times the sum of codes.
static void take_fine(const void* x, int dtype, int64_t columns, int64_t step, const FineTaken& to) {
    for (int64_t b = 0; b < columns / BLOCK; ++b) {
        float v[BLOCK];
        if (dtype == 0) std::memcpy(v, static_cast<const float*>(x) + b * BLOCK, sizeof v);
        else widen(static_cast<const uint16_t*>(x) + b * BLOCK, dtype, BLOCK, v);
        vf most = vzero(), faults = vzero();
        for (int i = 0; i < BLOCK; i += W) {
            const vf part = vload(v + i);
            most = vmax(most, vmax(part, vsub(vzero(), part)));
            faults = vadd(faults, vsub(part, part));  // not-a-number where one is not finite
        }
        const float top = vtop(most), fault = vsum(faults);
        const int64_t at = b * step;
        int16_t* codes = to.codes + at * BLOCK;
        int32_t* total = to.totals + 2 * at;
        int8_t* high = to.high ? to.high + at * BLOCK : nullptr;
        int8_t* low = to.high ? to.low + at * BLOCK : nullptr;
        if (fault != 0.0f || !(top > 0.0f)) {
            std::memset(codes, 0, BLOCK * 2);
            if (high != nullptr) std::memset(high, 0, BLOCK), std::memset(low, 0, BLOCK);
            to.units[at] = to.sums[at] = total[0] = total[1] = 0;
            if (fault == 0.0f) continue;
            codes[0] = codes[16] = 1;  // so that even a sum without minimum is not-a-number
            if (high != nullptr) low[0] = low[16] = 1;
            to.units[at] = to.sums[at] = fault;
            total[0] = total[1] = 1;
            continue;
        }
        float unit = top / FINE_CODES, by = FINE_CODES / top;
        if (top <= 1e-30f) {  // the inverse may overflow: all of the block times 2^100, which is exact
            if (unit * FINE_CODES < top) unit += 0x1p-149f;  // a subnormal unit is rounded up, so that codes fit
            for (float& one : v) one *= 0x1p100f;
            by = 1.0f / (unit * 0x1p100f);
        }
        round_fine(v, by, codes, total, high, low);
        to.units[at] = unit;
        to.sums[at] = unit * static_cast<float>(total[0] + total[1]);
    }
}

template <WeightType TYPE, int S>
TENON_INLINE void unpack_pairs(const uint8_t* block, int16_t* to) {
    using F = Format<TYPE>;
    const Codes w = codes_of<F::BITS, S>(block, block + F::LOW);
    pstore(to + 64 * S, peven(w, F::BITS == 8));
    pstore(to + 64 * S + 32, podd(w, F::BITS == 8));
}

template <WeightType TYPE, int S>
TENON_INLINE Sum add_step(const uint8_t* block, const int16_t* x, Sum sum) {
    using F = Format<TYPE>;
    const Codes w = codes_of<F::BITS, S>(block, block + F::LOW);
    sum = pdot(sum, peven(w, F::BITS == 8), x + 4 * S);
    return pdot(sum, podd(w, F::BITS == 8), x + 4 * S + 2);
}

// sums[m] of steps [FROM, FROM + COUNT) of unpacked weights, M tokens.
template <int M, int FROM, int COUNT>
TENON_INLINE void dot_pairs(const int16_t* weights, const int16_t* x, Sum* sum) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) sum[m] = szero();
#pragma GCC unroll 4
    for (int p = 2 * FROM; p < 2 * (FROM + COUNT); ++p) {
        const Pairs w = pload(weights + 32 * p);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sum[m] = pdot(sum[m], w, x + BLOCK * m + 2 * p);
    }
}

// The scales of one block's 16 rows.
struct BlockScales {
    Rows scale, second, minimum;  // second: of the later 16 columns (Q6_K)
};

template <WeightType TYPE>
TENON_INLINE BlockScales scales_of(const uint8_t* block, Rows d, Rows dmin) {
    using F = Format<TYPE>;
    const uint8_t* meta = block + F::META;
    BlockScales s{rzero(), rzero(), rzero()};
    if constexpr (TYPE == WeightType::q6_k) {
        s.scale = rmul(d, rsigned(meta));
        s.second = rmul(d, rsigned(meta + 16));
    } else if constexpr (F::IS_SUPER) {
        s.scale = rmul(d, rbytes(meta));
        s.minimum = rmul(dmin, rbytes(meta + 16));
    } else {
        s.scale = rhalf(meta);
        if constexpr (F::HAS_MIN) s.minimum = rhalf(meta + 32);
    }
    return s;
}

// acc + a block's sum (of a half, for Q6_K: `sum`, `second`), scaled. The sums are of codes without their offset. The unit
// comes first: times a weight's scale alone, that of a block of tiny values would vanish.
template <WeightType TYPE>
TENON_INLINE Rows scaled(Rows acc, Sum sum, Sum second, const BlockScales& s, float unit, float weight,
                         const int32_t* totals) {
    using F = Format<TYPE>;
    constexpr int OFFSET = TYPE == WeightType::q8_0 ? 0 : F::OFFSET;
    if constexpr (TYPE == WeightType::q6_k) {
        acc = rfma(rscale(rof(sminus(sum, OFFSET * totals[0])), unit), s.scale, acc);
        return rfma(rscale(rof(sminus(second, OFFSET * totals[1])), unit), s.second, acc);
    }
    if constexpr (OFFSET != 0) sum = sminus(sum, OFFSET * (totals[0] + totals[1]));
    acc = rfma(rscale(rof(sum), unit), s.scale, acc);
    if constexpr (F::HAS_MIN) acc = rfmas(s.minimum, F::IS_SUPER ? -weight : weight, acc);
    return acc;
}

template <WeightType TYPE, int M>
TENON_INLINE void fine_tokens(const int16_t* weights, const BlockScales& s, const Fine& x, int64_t at, float* out) {
    Sum sum[M], second[M];
    if constexpr (TYPE == WeightType::q6_k) {
        dot_pairs<M, 0, 4>(weights, x.codes + at * BLOCK, sum);
        dot_pairs<M, 4, 4>(weights, x.codes + at * BLOCK, second);
    } else {
        dot_pairs<M, 0, 8>(weights, x.codes + at * BLOCK, sum);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
        const int64_t one = at + m;
        const Sum later = TYPE == WeightType::q6_k ? second[m] : sum[m];
        rstore(out + m * GROUP, scaled<TYPE>(rload(out + m * GROUP), sum[m], later, s, x.units[one], x.sums[one], x.totals + 2 * one));
    }
}

constexpr int FINE_TILE = TENON_LEVEL_NUMBER >= 2 ? 12 : TENON_LEVEL_NUMBER == 1 ? 6 : 1;

// out [tokens, 16]: a packed group times tokens [first, first + tokens) of x.
template <WeightType TYPE>
static void multiply_fine_blocks(const uint8_t* group, const Fine& x, int64_t first, int64_t tokens, float* out) {
    using F = Format<TYPE>;
    alignas(64) int16_t weights[GROUP * BLOCK];
    Rows d = rzero(), dmin = rzero(), alone = rzero();
    const int64_t ahead = x.columns / BLOCK * F::BYTES + x.columns / SUPER * F::HEAD;
    std::memset(out, 0, static_cast<size_t>(tokens) * GROUP * 4);
    for (int64_t b = 0; b < x.columns / BLOCK; ++b, group += F::BYTES) {
        if constexpr (F::IS_SUPER) {
            if (b % 8 == 0) {
                d = rhalf(group);
                if constexpr (F::HAS_MIN) dmin = rhalf(group + 32);
                group += F::HEAD;
            }
        }
        const BlockScales s = scales_of<TYPE>(group, d, dmin);
        const int64_t at = b * x.tokens + first;
        if (tokens == 1) {
            const int16_t* codes = x.codes + at * BLOCK;
            Sum sum = szero(), second = szero();  // two chains, or the halves of Q6_K
            sum = add_step<TYPE, 0>(group, codes, sum);
            second = add_step<TYPE, 4>(group, codes, second);
            sum = add_step<TYPE, 1>(group, codes, sum);
            second = add_step<TYPE, 5>(group, codes, second);
            sum = add_step<TYPE, 2>(group, codes, sum);
            second = add_step<TYPE, 6>(group, codes, second);
            sum = add_step<TYPE, 3>(group, codes, sum);
            second = add_step<TYPE, 7>(group, codes, second);
            if constexpr (TYPE != WeightType::q6_k) sum = sadd(sum, second);
            alone = scaled<TYPE>(alone, sum, second, s, x.units[at], x.sums[at], x.totals + 2 * at);
            continue;
        }
        ask_for(group, ahead, F::BYTES);
        unpack_pairs<TYPE, 0>(group, weights);
        unpack_pairs<TYPE, 1>(group, weights);
        unpack_pairs<TYPE, 2>(group, weights);
        unpack_pairs<TYPE, 3>(group, weights);
        unpack_pairs<TYPE, 4>(group, weights);
        unpack_pairs<TYPE, 5>(group, weights);
        unpack_pairs<TYPE, 6>(group, weights);
        unpack_pairs<TYPE, 7>(group, weights);
        int64_t t = 0;
        for (; t + FINE_TILE <= tokens; t += FINE_TILE) fine_tokens<TYPE, FINE_TILE>(weights, s, x, at + t, out + t * GROUP);
        if constexpr (FINE_TILE > 4)
            for (; t + 4 <= tokens; t += 4) fine_tokens<TYPE, 4>(weights, s, x, at + t, out + t * GROUP);
        if constexpr (FINE_TILE > 2)
            for (; t + 2 <= tokens; t += 2) fine_tokens<TYPE, 2>(weights, s, x, at + t, out + t * GROUP);
        for (; t < tokens; ++t) fine_tokens<TYPE, 1>(weights, s, x, at + t, out + t * GROUP);
    }
    if (tokens == 1) rstore(out, alone);
}
