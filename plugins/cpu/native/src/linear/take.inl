// Activations of one token: to float32, and to int8 in blocks of 32. Included inside namespace tenon::TENON_LEVEL.
//
// d = max|x| / 127, q = x / d rounded to even: what llama.cpp's Q8_1 does, with d kept in float32. Same bits at every level.

TENON_INLINE void widen(const void* x, int dtype, int64_t columns, float* values) {
    if (dtype == 0) {
        std::memcpy(values, x, static_cast<size_t>(columns) * 4);
        return;
    }
    const uint16_t* from = static_cast<const uint16_t*>(x);
    int64_t c = 0;
    if (dtype == 1) {
        for (; c + W <= columns; c += W) vstore(values + c, vload_bf16(from + c));
        for (; c < columns; ++c) values[c] = bf16_to_f32(from[c]);
    } else {
        for (; c + W <= columns; c += W) vstore(values + c, vload_f16(from + c));
        for (; c < columns; ++c) values[c] = f16_to_f32(from[c]);
    }
}

#if TENON_LEVEL_NUMBER >= 1
// Of sixteen signed bytes, as unsigned ones of 128 more.
TENON_INLINE int32_t sum_of(__m128i codes) {
    const __m128i above = _mm_xor_si128(codes, _mm_set1_epi8(static_cast<char>(0x80)));
    const __m128i eight = _mm_sad_epu8(above, _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(eight, _mm_unpackhi_epi64(eight, eight))) - 16 * 128;
}
#endif

// codes [32] of x * inverse, halves [2]: sums over 16 codes.
TENON_INLINE void round_block(const float* x, float inverse, int8_t* codes, int32_t* halves) {
#if TENON_LEVEL_NUMBER >= 2
    const __m512 by = _mm512_set1_ps(inverse);
    for (int i = 0; i < 32; i += 16) {
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), by));
        const __m128i bytes = _mm512_cvtsepi32_epi8(whole);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), bytes);
        halves[i >> 4] = sum_of(bytes);
    }
#elif TENON_LEVEL_NUMBER == 1
    const __m256 by = _mm256_set1_ps(inverse);
    __m256i w[4];
    for (int i = 0; i < 4; ++i) w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), by));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    const __m256i bytes = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
    halves[0] = sum_of(_mm256_castsi256_si128(bytes));
    halves[1] = sum_of(_mm256_extracti128_si256(bytes, 1));
#else
    halves[0] = halves[1] = 0;
    for (int i = 0; i < 32; ++i) {
        codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
        halves[i >> 4] += codes[i];
    }
#endif
}

// Block b's scale and sum are written at b * step.
static void quantize(const float* x, int64_t columns, int64_t step, int8_t* codes, float* scales, float* sums, int32_t* halves) {
    for (int64_t b = 0; b < columns / BLOCK; ++b, x += BLOCK, codes += BLOCK, scales += step, sums += step, halves += 2) {
        vf most = vzero(), faults = vzero();
        for (int i = 0; i < BLOCK; i += W) {
            const vf v = vload(x + i);
            most = vmax(most, vmax(v, vsub(vzero(), v)));
            faults = vadd(faults, vsub(v, v));  // not-a-number where v is not finite
        }
        const float top = vtop(most), fault = vsum(faults);
        const bool is_zero = !(top > 0.0f);
        *scales = fault == 0.0f ? (is_zero ? 0.0f : top / 127.0f) : fault;
        if (fault != 0.0f || is_zero) {
            std::memset(codes, 0, BLOCK);
            if (fault != 0.0f) codes[0] = codes[16] = 1;  // so that even a sum without minimum is not-a-number
            halves[0] = halves[1] = codes[0];
            *sums = *scales;  // zero, or not-a-number
            continue;
        }
        if (top > 1e-30f) {
            round_block(x, 127.0f / top, codes, halves);
        } else {  // 127 / top may overflow: all of the block times 2^100, which is exact
            float larger[BLOCK];
            for (int i = 0; i < BLOCK; ++i) larger[i] = x[i] * 0x1p100f;
            round_block(larger, 127.0f / (top * 0x1p100f), codes, halves);
        }
        *sums = *scales * static_cast<float>(halves[0] + halves[1]);
    }
}
