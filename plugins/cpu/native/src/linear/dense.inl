// Products of float weights: a column of 16 rows times one activation, summed in float32 in the order of the columns.
// Included inside namespace tenon::TENON_LEVEL, after bytes.inl and pairs.inl.

#if TENON_LEVEL_NUMBER >= 2
TENON_INLINE void rpairs(const uint8_t* p, Rows& even, Rows& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
#elif TENON_LEVEL_NUMBER == 1
TENON_INLINE void rpairs(const uint8_t* p, Rows& even, Rows& odd) {
    const Codes both = cload(p);
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(both.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(both.b, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(both.a, high)), _mm256_castsi256_ps(_mm256_and_si256(both.b, high))};
}
#else
TENON_INLINE void rpairs(const uint8_t* p, Rows& even, Rows& odd) {
    uint16_t both[32];
    std::memcpy(both, p, 64);
    for (int i = 0; i < 16; ++i) {
        even.v[i] = bf16_to_f32(both[2 * i]);
        odd.v[i] = bf16_to_f32(both[2 * i + 1]);
    }
}
#endif

// out [M, 16], from token `first` on. ASKS: for what is read next; later tokens find the group near.
template <WeightType TYPE, int M, bool ASKS>
static void multiply_dense_tokens(const uint8_t* group, const Activations& x, int64_t first, float* out) {
    const int64_t columns = x.columns;
    const float* values = x.values + first * columns;
    Rows acc[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = rzero();
    if constexpr (TYPE == WeightType::bf16) {
        Rows even, odd;
        int64_t c = 0;
        for (; c + 2 <= columns; c += 2) {
            if constexpr (ASKS) ask_for(group + 32 * c, DENSE_AHEAD, 64);
            rpairs(group + 32 * c, even, odd);
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) {
                acc[m] = rfmas(even, values[m * columns + c], acc[m]);
                acc[m] = rfmas(odd, values[m * columns + c + 1], acc[m]);
            }
        }
        if (c < columns) {
            rpairs(group + 32 * c, even, odd);
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) acc[m] = rfmas(even, values[m * columns + c], acc[m]);
        }
    } else {
        for (int64_t c = 0; c < columns; ++c) {
            if constexpr (ASKS) ask_for(group + (TYPE == WeightType::f16 ? 32 : 64) * c, DENSE_AHEAD, 64);
            const Rows w = TYPE == WeightType::f16 ? rhalf(group + 32 * c)
                                                   : rload(reinterpret_cast<const float*>(group) + 16 * c);
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) acc[m] = rfmas(w, values[m * columns + c], acc[m]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) rstore(out + m * GROUP, acc[m]);
}

constexpr int DENSE_TILE = TENON_LEVEL_NUMBER >= 2 ? 12 : TENON_LEVEL_NUMBER == 1 ? 6 : 1;

// From token t on, M at a time while there are as many; returns the first that is left.
template <WeightType TYPE, int M>
static int64_t multiply_dense_by(const uint8_t* group, const Activations& x, int64_t t, int64_t tokens, float* out) {
    for (; t + M <= tokens; t += M) {
        if (t == 0) multiply_dense_tokens<TYPE, M, true>(group, x, t, out);
        else multiply_dense_tokens<TYPE, M, false>(group, x, t, out + t * GROUP);
    }
    return t;
}

template <WeightType TYPE>
static void multiply_dense(const uint8_t* group, const Activations& x, int64_t tokens, float* out) {
    int64_t t = multiply_dense_by<TYPE, DENSE_TILE>(group, x, 0, tokens, out);
    if constexpr (DENSE_TILE > 4) t = multiply_dense_by<TYPE, 4>(group, x, t, tokens, out);
    if constexpr (DENSE_TILE > 2) t = multiply_dense_by<TYPE, 2>(group, x, t, tokens, out);
    multiply_dense_by<TYPE, 1>(group, x, t, tokens, out);
}
