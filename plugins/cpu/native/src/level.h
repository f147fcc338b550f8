// What a file that is compiled once per instruction set includes first: the level's name, number, and vectors of float.
//
// CMake defines TENON_LEVEL (portable, avx2, avx512, avx512_vnni, amx) and TENON_LEVEL_NUMBER (0..4).
// `vf` holds W floats (1, 8 or 16); kernels written with it serve every level. Loads and stores are unaligned.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa.h"

#if TENON_LEVEL_NUMBER >= 1
#include <immintrin.h>
#endif

#define TENON_INLINE static inline __attribute__((always_inline))

namespace tenon {
namespace TENON_LEVEL {

TENON_INLINE float bf16_to_f32(uint16_t v) {
    const uint32_t bits = static_cast<uint32_t>(v) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

// Rounds to nearest even; not-a-number stays one.
TENON_INLINE uint16_t f32_to_bf16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

TENON_INLINE float f16_to_f32(uint16_t v) {
#if TENON_LEVEL_NUMBER >= 1
    return _cvtsh_ss(v);
#else
    const uint32_t sign = static_cast<uint32_t>(v & 0x8000) << 16, exponent = v >> 10 & 31, mantissa = v & 1023;
    uint32_t bits;
    float f;
    if (exponent == 0) {  // zero or subnormal: mantissa times 2^-24
        f = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    std::memcpy(&f, &bits, 4);
    return f;
#endif
}

TENON_INLINE uint16_t f32_to_f16(float f) {
#if TENON_LEVEL_NUMBER >= 1
    return static_cast<uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT));
#else
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
    if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
    if (bits < 0x38800000u) {                                                  // subnormal: units of 2^-24
        float a;
        std::memcpy(&a, &bits, 4);
        return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(a * 16777216.0f)));
    }
    return static_cast<uint16_t>(sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112u << 10)));
#endif
}

#if TENON_LEVEL_NUMBER >= 2

constexpr int W = 16;
using vf = __m512;
TENON_INLINE vf vzero() { return _mm512_setzero_ps(); }
TENON_INLINE vf vset(float a) { return _mm512_set1_ps(a); }
TENON_INLINE vf vload(const float* p) { return _mm512_loadu_ps(p); }
TENON_INLINE void vstore(float* p, vf a) { _mm512_storeu_ps(p, a); }
TENON_INLINE vf vadd(vf a, vf b) { return _mm512_add_ps(a, b); }
TENON_INLINE vf vsub(vf a, vf b) { return _mm512_sub_ps(a, b); }
TENON_INLINE vf vmul(vf a, vf b) { return _mm512_mul_ps(a, b); }
TENON_INLINE vf vdiv(vf a, vf b) { return _mm512_div_ps(a, b); }
TENON_INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
TENON_INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
TENON_INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
TENON_INLINE vf vround(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TENON_INLINE float vsum(vf a) { return _mm512_reduce_add_ps(a); }
TENON_INLINE float vtop(vf a) { return _mm512_reduce_max_ps(a); }
// 2^n for whole n in [-126, 127].
TENON_INLINE vf vexp2i(vf n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
TENON_INLINE vf vload_bf16(const uint16_t* p) {
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
TENON_INLINE void vstore_bf16(uint16_t* p, vf a) {
    const __m512i bits = _mm512_castps_si512(a), high = _mm512_srli_epi32(bits, 16);
    const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1)));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __m512i kept = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __m512i words = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), kept);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
}
TENON_INLINE vf vload_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#elif TENON_LEVEL_NUMBER == 1

constexpr int W = 8;
using vf = __m256;
TENON_INLINE vf vzero() { return _mm256_setzero_ps(); }
TENON_INLINE vf vset(float a) { return _mm256_set1_ps(a); }
TENON_INLINE vf vload(const float* p) { return _mm256_loadu_ps(p); }
TENON_INLINE void vstore(float* p, vf a) { _mm256_storeu_ps(p, a); }
TENON_INLINE vf vadd(vf a, vf b) { return _mm256_add_ps(a, b); }
TENON_INLINE vf vsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
TENON_INLINE vf vmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
TENON_INLINE vf vdiv(vf a, vf b) { return _mm256_div_ps(a, b); }
TENON_INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
TENON_INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
TENON_INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
TENON_INLINE vf vround(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TENON_INLINE float vsum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
TENON_INLINE float vtop(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
TENON_INLINE vf vexp2i(vf n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
TENON_INLINE vf vload_bf16(const uint16_t* p) {
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
TENON_INLINE void vstore_bf16(uint16_t* p, vf a) {
    const __m256i bits = _mm256_castps_si256(a), high = _mm256_srli_epi32(bits, 16);
    const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i kept = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, kept, nan);
    const __m128i low = _mm256_castsi256_si128(words), later = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, later));
}
TENON_INLINE vf vload_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#else

constexpr int W = 1;
using vf = float;
TENON_INLINE vf vzero() { return 0.0f; }
TENON_INLINE vf vset(float a) { return a; }
TENON_INLINE vf vload(const float* p) { return *p; }
TENON_INLINE void vstore(float* p, vf a) { *p = a; }
TENON_INLINE vf vadd(vf a, vf b) { return a + b; }
TENON_INLINE vf vsub(vf a, vf b) { return a - b; }
TENON_INLINE vf vmul(vf a, vf b) { return a * b; }
TENON_INLINE vf vdiv(vf a, vf b) { return a / b; }
TENON_INLINE vf vfma(vf a, vf b, vf c) { return a * b + c; }
TENON_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }
TENON_INLINE vf vmin(vf a, vf b) { return a < b ? a : b; }
TENON_INLINE vf vround(vf a) { return std::nearbyint(a); }
TENON_INLINE float vsum(vf a) { return a; }
TENON_INLINE float vtop(vf a) { return a; }
TENON_INLINE vf vexp2i(vf n) { return std::ldexp(1.0f, static_cast<int>(n)); }
TENON_INLINE vf vload_bf16(const uint16_t* p) { return bf16_to_f32(*p); }
TENON_INLINE vf vload_f16(const uint16_t* p) { return f16_to_f32(*p); }
TENON_INLINE void vstore_bf16(uint16_t* p, vf a) { *p = f32_to_bf16(a); }

#endif

// e^a to 1.5 units in the last place: 2^n e^r, |r| <= ln 2 / 2, a polynomial of degree 6 (Cephes expf). Saturates.
TENON_INLINE vf vexp(vf a) {
    a = vmin(vmax(a, vset(-87.3f)), vset(88.0f));
    const vf n = vround(vmul(a, vset(1.44269504088896341f)));
    vf r = vfma(n, vset(-0.693359375f), a);
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vfma(vmul(r, r), p, vadd(r, vset(1.0f)));
    return vmul(p, vexp2i(n));
}

}  // namespace TENON_LEVEL
}  // namespace tenon
