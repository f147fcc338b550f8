// AMX: a group of quantized weights as bfloat16, in the order that bfloat16 is packed in (packed.h): for products of many
// tokens, which then add up in the tiles. Included inside namespace tenon::amx after tiles.inl, and by tests/tiles.cpp.
//
// A block of int8 products has scales of its own, so its 256 sums leave the tiles, are converted and scaled: of one thread
// 109 cycles for 16 tokens, of which the product alone takes 48, with its store 58, the scales alone 34. Here a block becomes
// 1 KiB of bfloat16 once a call, and its product takes 16 cycles where tiles are at their best. Weight and activation are
// rounded to eight bits each; int8 codes of activations have eight bits of a block's largest, which is coarser.
//
// All linears of SmolLM2-135M on two threads of an Intel Xeon, milliseconds, int8 codes and bfloat16 (medians):
//     tokens     32           64           128          512
//     Q4_1       17.2  21.1   28.5  32.3   52.2  46.2   193  134
//     Q8_0       17.3  21.3   27.2  28.5                168  148
//     Q4_K       16.8  21.7   28.3  28.4                185  123
//     Q6_K       25.2  23.8   43.4  30.6                298  132

#if TENON_LEVEL_NUMBER == 4
// Columns 2i and 2i + 1 of 16 rows, side by side.
TENON_INLINE void put_pair(uint16_t* wide, __m512 even, __m512 odd) {
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
    _mm512_storeu_si512(wide, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

// Codes of four columns, a byte each of a row's dword.
TENON_INLINE void widen_codes(Codes codes, Rows scale, Rows minimum, uint16_t* wide) {
    __m512 w[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const __m512i code = _mm512_srai_epi32(_mm512_sll_epi32(codes, _mm_cvtsi32_si128(24 - 8 * j)), 24);
        w[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale.v, minimum.v);
    }
    put_pair(wide, w[0], w[1]);
    put_pair(wide + 2 * GROUP, w[2], w[3]);
}
#else
TENON_INLINE void widen_codes(const Codes& codes, const Rows& scale, const Rows& minimum, uint16_t* wide) {
    uint8_t bytes[64];
    float scales[GROUP], minimums[GROUP];
    cstore(bytes, codes);
    rstore(scales, scale);
    rstore(minimums, minimum);
    for (int row = 0; row < GROUP; ++row)
        for (int j = 0; j < 4; ++j)
            wide[j / 2 * 2 * GROUP + 2 * row + j % 2] =
                f32_to_bf16(std::fma(static_cast<float>(static_cast<int8_t>(bytes[4 * row + j])), scales[row], minimums[row]));
}
#endif

template <WeightType TYPE, int S>
TENON_INLINE void widen_step(const uint8_t* block, const BlockScales& s, uint16_t* wide) {
    const bool is_second = TYPE == WeightType::q6_k && S >= 4;
    widen_codes(signed_step<TYPE, S>(block), is_second ? s.second : s.scale, s.minimum, wide + 4 * GROUP * S);
}

// wide [columns / 2, 16, 2].
template <WeightType TYPE>
static void widen_group(const uint8_t* group, int64_t columns, uint16_t* wide) {
    using F = Format<TYPE>;
    const int64_t blocks = columns / BLOCK, ahead = blocks * F::BYTES + blocks / 8 * F::HEAD;
    Rows d = rzero(), dmin = rzero();
    for (int64_t b = 0; b < blocks; ++b, wide += BLOCK * GROUP) {
        const BlockScales s = next_scales<TYPE>(group, b, d, dmin);
        const uint8_t* block = group - F::BYTES;
        ask_for(block, ahead, F::BYTES);
        widen_step<TYPE, 0>(block, s, wide);
        widen_step<TYPE, 1>(block, s, wide);
        widen_step<TYPE, 2>(block, s, wide);
        widen_step<TYPE, 3>(block, s, wide);
        widen_step<TYPE, 4>(block, s, wide);
        widen_step<TYPE, 5>(block, s, wide);
        widen_step<TYPE, 6>(block, s, wide);
        widen_step<TYPE, 7>(block, s, wide);
    }
}

static void to_bf16(int32_t type, const uint8_t* group, int64_t columns, uint16_t* wide) {
    switch (static_cast<WeightType>(type)) {
        case WeightType::q4_0: return widen_group<WeightType::q4_0>(group, columns, wide);
        case WeightType::q4_1: return widen_group<WeightType::q4_1>(group, columns, wide);
        case WeightType::q5_0: return widen_group<WeightType::q5_0>(group, columns, wide);
        case WeightType::q5_1: return widen_group<WeightType::q5_1>(group, columns, wide);
        case WeightType::q8_0: return widen_group<WeightType::q8_0>(group, columns, wide);
        case WeightType::q4_k: return widen_group<WeightType::q4_k>(group, columns, wide);
        case WeightType::q5_k: return widen_group<WeightType::q5_k>(group, columns, wide);
        case WeightType::q6_k: return widen_group<WeightType::q6_k>(group, columns, wide);
        default: return;  // dense groups are not asked for
    }
}
