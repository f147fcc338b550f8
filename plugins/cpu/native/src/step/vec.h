// One vector of floats, by instruction set: what the step's kernels are written in.
//
// Included inside namespace tenon::TENON_LEVEL (isa.h says why). Beside level.h: classes with operators, halves as types.
// `Half` types are bit patterns: bfloat16 and float16 are converted on load and store, rounded to nearest even.

struct BF16 {
    uint16_t bits;
};
struct F16 {
    uint16_t bits;
};
struct I8 {  // of a scale that lies elsewhere
    int8_t code;
};

static inline float bits_to_float(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
static inline float to_float(float x) { return x; }
static inline float to_float(I8 x) { return static_cast<float>(x.code); }
static inline float to_float(BF16 x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }
static inline float to_float(F16 x) {
    const uint32_t sign = (x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 31u, fraction = x.bits & 0x3FFu;
    if (exponent == 31) return bits_to_float(sign | 0x7F800000u | (fraction << 13));
    if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float small = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -small : small;
}
static inline void from_float(float x, float& y) { y = x; }
static inline void from_float(float x, BF16& y) {
    const uint32_t bits = float_to_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        y.bits = static_cast<uint16_t>((bits >> 16) | 0x40u);  // a quiet NaN stays one
    } else {
        y.bits = static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
    }
}
static inline void from_float(float x, F16& y) {
    const uint32_t bits = float_to_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
        y.bits = static_cast<uint16_t>(sign | 0x7E00u);
    } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
        y.bits = static_cast<uint16_t>(sign | 0x7C00u);
    } else if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by the addition
        const float shifted = bits_to_float(magnitude) + 0.5f;
        y.bits = static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3F000000u));
    } else {
        const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
        y.bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
    }
}

#if TENON_LEVEL_NUMBER >= 2

struct Vec {
    static constexpr int W = 16;
    __m512 v;
};
static inline Vec vzero() { return {_mm512_setzero_ps()}; }
static inline Vec vset(float x) { return {_mm512_set1_ps(x)}; }
static inline Vec vload(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline Vec vload(const BF16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
static inline Vec vload(const F16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline Vec vload(const I8* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
static inline void vload_pairs(const BF16* p, Vec& even, Vec& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
static inline void vstore(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
static inline __m512i bf16_bits(Vec x) {  // in the upper halves; the lower ones are of no meaning
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), lsb);
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
static inline void vstore(BF16* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(x), 16)));
}
static inline Vec vround_to(BF16, Vec x) {
    return {_mm512_castsi512_ps(_mm512_and_si512(bf16_bits(x), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
}
static inline void vstore(F16* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline Vec vfma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Vec vmax(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Vec vmin(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline float vsum(Vec a) { return _mm512_reduce_add_ps(a.v); }
static inline float vtop(Vec a) { return _mm512_reduce_max_ps(a.v); }
static inline Vec vround(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline Vec vpow2(Vec n) {  // 2^n of integers in [-126, 127]
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// Lanes where a < b come from x, the others from y.
static inline Vec vselect_less(Vec a, Vec b, Vec x, Vec y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
static inline bool vany_more(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
static inline bool vany_at_least(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ) != 0; }

#elif TENON_LEVEL_NUMBER == 1

struct Vec {
    static constexpr int W = 8;
    __m256 v;
};
static inline Vec vzero() { return {_mm256_setzero_ps()}; }
static inline Vec vset(float x) { return {_mm256_set1_ps(x)}; }
static inline Vec vload(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline Vec vload(const BF16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
static inline Vec vload(const F16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
static inline Vec vload(const I8* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
static inline void vload_pairs(const BF16* p, Vec& even, Vec& odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even.v = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    odd.v = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
static inline void vstore(float* p, Vec x) { _mm256_storeu_ps(p, x.v); }
static inline __m256i bf16_bits(Vec x) {  // in the upper halves; the lower ones are of no meaning
    const __m256i bits = _mm256_castps_si256(x.v);
    const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), lsb);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
}
static inline Vec vround_to(BF16, Vec x) {
    return {_mm256_castsi256_ps(_mm256_and_si256(bf16_bits(x), _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))))};
}
static inline void vstore(BF16* p, Vec x) {
    const __m256i rounded = _mm256_srli_epi32(bf16_bits(x), 16);
    const __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, high));
}
static inline void vstore(F16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline Vec vfma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline Vec vmax(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline Vec vmin(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline float vsum(Vec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static inline float vtop(Vec a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
static inline Vec vround(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline Vec vpow2(Vec n) {  // 2^n of integers in [-126, 127]
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
// Lanes where a < b come from x, the others from y.
static inline Vec vselect_less(Vec a, Vec b, Vec x, Vec y) {
    return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
static inline bool vany_more(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0; }
static inline bool vany_at_least(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)) != 0; }

#else  // portable: eight floats that any compiler can put into its own vectors

struct Vec {
    static constexpr int W = 8;
    float v[8];
};
#define TENON_LANES for (int i = 0; i < 8; ++i)
static inline Vec vset(float x) {
    Vec y;
    TENON_LANES y.v[i] = x;
    return y;
}
static inline Vec vzero() { return vset(0.0f); }
template <class T>
static inline Vec vload(const T* p) {
    Vec y;
    TENON_LANES y.v[i] = to_float(p[i]);
    return y;
}
static inline void vload_pairs(const BF16* p, Vec& even, Vec& odd) {
    TENON_LANES {
        even.v[i] = to_float(p[2 * i]);
        odd.v[i] = to_float(p[2 * i + 1]);
    }
}
template <class T>
static inline void vstore(T* p, Vec x) {
    TENON_LANES from_float(x.v[i], p[i]);
}
static inline Vec vfma(Vec a, Vec b, Vec c) {
    TENON_LANES c.v[i] += a.v[i] * b.v[i];
    return c;
}
static inline Vec operator+(Vec a, Vec b) {
    TENON_LANES a.v[i] += b.v[i];
    return a;
}
static inline Vec operator-(Vec a, Vec b) {
    TENON_LANES a.v[i] -= b.v[i];
    return a;
}
static inline Vec operator*(Vec a, Vec b) {
    TENON_LANES a.v[i] *= b.v[i];
    return a;
}
static inline Vec operator/(Vec a, Vec b) {
    TENON_LANES a.v[i] /= b.v[i];
    return a;
}
static inline Vec vmax(Vec a, Vec b) {
    TENON_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
static inline Vec vmin(Vec a, Vec b) {
    TENON_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}
static inline float vsum(Vec a) {
    return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
static inline float vtop(Vec a) {
    float best = a.v[0];
    TENON_LANES best = a.v[i] > best ? a.v[i] : best;
    return best;
}
static inline Vec vround(Vec a) {
    TENON_LANES a.v[i] = __builtin_rintf(a.v[i]);
    return a;
}
static inline Vec vpow2(Vec n) {
    TENON_LANES n.v[i] = bits_to_float(static_cast<uint32_t>(static_cast<int>(n.v[i]) + 127) << 23);
    return n;
}
static inline Vec vselect_less(Vec a, Vec b, Vec x, Vec y) {
    TENON_LANES y.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return y;
}
static inline bool vany_more(Vec a, Vec b) {
    bool any = false;
    TENON_LANES any |= a.v[i] > b.v[i];
    return any;
}
static inline bool vany_at_least(Vec a, Vec b) {
    bool any = false;
    TENON_LANES any |= a.v[i] >= b.v[i];
    return any;
}

#endif

constexpr int W = Vec::W;

// e^x with a relative error below 2^-22; 0 below -87.3, where the exact value is no normal float.
static inline Vec vexp(Vec x) {
    const Vec least = vset(-87.3f);
    const Vec bounded = vmin(vmax(x, least), vset(88.3f));
    const Vec n = vround(bounded * vset(1.44269504088896341f));
    Vec r = vfma(n, vset(-0.693359375f), bounded);
    r = vfma(n, vset(2.12194440e-4f), r);
    Vec p = vset(1.9875691500e-4f);  // Cephes' expf
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vfma(p, r * r, r + vset(1.0f));
    return vselect_less(x, least, vzero(), p * vpow2(n));
}

static inline Vec vtanh(Vec x) { return vset(1.0f) - vset(2.0f) / (vexp(x + x) + vset(1.0f)); }

// The first n < W values at p; the other lanes are `rest`.
template <class T>
static inline Vec vload_part(const T* p, int n, float rest = 0.0f) {
    float values[W];
    for (int i = 0; i < W; ++i) values[i] = i < n ? to_float(p[i]) : rest;
    return vload(values);
}
template <class T>
static inline void vstore_part(T* p, Vec x, int n) {
    float values[W];
    vstore(values, x);
    for (int i = 0; i < n; ++i) from_float(values[i], p[i]);
}
