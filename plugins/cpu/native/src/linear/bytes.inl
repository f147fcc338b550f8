// A vector of 64 bytes = 16 rows x 4 columns, and the dot product of its dwords with four activations, by level.
// Included inside namespace tenon::TENON_LEVEL.
//
// Codes: unsigned bytes (Q8_0: signed, `SIGNED`). Sum: 16 int32. Part: sums that a level keeps narrow within a block:
// without VNNI, 16-bit pairs, which must be `drain`ed before they overflow: 2 * 127 * (2^bits - 1) * steps < 2^15.
// cminus, sload, sleft are what tiles need: not there with AVX2.

// GCC turns a chain of integer sums into a tree, whose leaves do not fit the registers: a sum it cannot see through stays
// where it was written (up to 1.4 times the speed with AVX2, at many tokens).
#define KEEP_ORDER(value) asm("" : "+v"(value))

#if TENON_LEVEL_NUMBER >= 2

using Codes = __m512i;
using Sum = __m512i;
struct Rows {  // 16 floats
    __m512 v;
};
TENON_INLINE Codes cload(const uint8_t* p) { return _mm512_loadu_si512(p); }
TENON_INLINE void cstore(uint8_t* p, Codes v) { _mm512_storeu_si512(p, v); }
TENON_INLINE Codes cand(Codes a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask))); }
TENON_INLINE Codes cor(Codes a, Codes b) { return _mm512_or_si512(a, b); }
template <int N> TENON_INLINE Codes cright(Codes a) { return _mm512_srli_epi16(a, N); }
template <int N> TENON_INLINE Codes cleft(Codes a) { return _mm512_slli_epi16(a, N); }
TENON_INLINE Sum szero() { return _mm512_setzero_si512(); }
TENON_INLINE Sum sadd(Sum a, Sum b) { return _mm512_add_epi32(a, b); }
TENON_INLINE Sum sminus(Sum a, int32_t b) { return _mm512_sub_epi32(a, _mm512_set1_epi32(b)); }
TENON_INLINE Codes cminus(Codes a, int b) { return _mm512_sub_epi8(a, _mm512_set1_epi8(static_cast<char>(b))); }
TENON_INLINE Sum sload(const int32_t* p) { return _mm512_load_si512(p); }
template <int N> TENON_INLINE Sum sleft(Sum a) { return _mm512_slli_epi32(a, N); }
TENON_INLINE Rows rzero() { return {_mm512_setzero_ps()}; }
TENON_INLINE Rows rhalf(const uint8_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
TENON_INLINE Rows rbytes(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
TENON_INLINE Rows rsigned(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
TENON_INLINE Rows rof(Sum s) { return {_mm512_cvtepi32_ps(s)}; }
TENON_INLINE Rows rmul(Rows a, Rows b) { return {_mm512_mul_ps(a.v, b.v)}; }
TENON_INLINE Rows rscale(Rows a, float b) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(b))}; }
TENON_INLINE Rows rfma(Rows a, Rows b, Rows c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TENON_INLINE Rows rfmas(Rows a, float b, Rows c) { return {_mm512_fmadd_ps(a.v, _mm512_set1_ps(b), c.v)}; }
TENON_INLINE void rstore(float* p, Rows a) { _mm512_storeu_ps(p, a.v); }

TENON_INLINE __m512i four(const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    return _mm512_set1_epi32(word);
}

#if TENON_LEVEL_NUMBER >= 3
constexpr bool NARROW = false;
using Part = __m512i;
TENON_INLINE Part pstep(Part p, Codes w, const int8_t* x) { return _mm512_dpbusd_epi32(p, w, four(x)); }
TENON_INLINE Sum pdrain(Part p) { return p; }
// Signed codes plus 128, less 128 times the sum of activations, which the caller takes off.
constexpr int SIGNED_OFFSET = 128;
TENON_INLINE Codes csigned(Codes w) { return _mm512_xor_si512(w, _mm512_set1_epi8(static_cast<char>(0x80))); }
TENON_INLINE Sum sstep(Sum s, Codes w, const int8_t* x) { return _mm512_dpbusd_epi32(s, w, four(x)); }
#else
constexpr bool NARROW = true;
using Part = __m512i;
TENON_INLINE Part pstep(Part p, Codes w, const int8_t* x) {
    p = _mm512_add_epi16(p, _mm512_maddubs_epi16(w, four(x)));
    KEEP_ORDER(p);
    return p;
}
TENON_INLINE Sum pdrain(Part p) { return _mm512_madd_epi16(p, _mm512_set1_epi16(1)); }
constexpr int SIGNED_OFFSET = 0;
TENON_INLINE Codes csigned(Codes w) { return w; }
TENON_INLINE Sum sstep(Sum s, Codes w, const int8_t* x) {
    const __m512i v = four(x);
    const __m512i sign = _mm512_mask_sub_epi8(v, _mm512_movepi8_mask(w), _mm512_setzero_si512(), v);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), sign);
    s = _mm512_add_epi32(s, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    KEEP_ORDER(s);
    return s;
}
#endif

#elif TENON_LEVEL_NUMBER == 1

struct Codes {
    __m256i a, b;
};
using Sum = Codes;
using Part = Codes;
struct Rows {
    __m256 a, b;
};
TENON_INLINE __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
TENON_INLINE Codes cload(const uint8_t* p) { return {load32(p), load32(p + 32)}; }
TENON_INLINE void cstore(uint8_t* p, Codes v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), v.b);
}
TENON_INLINE Codes cand(Codes v, int mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(v.a, m), _mm256_and_si256(v.b, m)};
}
TENON_INLINE Codes cor(Codes v, Codes w) { return {_mm256_or_si256(v.a, w.a), _mm256_or_si256(v.b, w.b)}; }
template <int N> TENON_INLINE Codes cright(Codes v) { return {_mm256_srli_epi16(v.a, N), _mm256_srli_epi16(v.b, N)}; }
template <int N> TENON_INLINE Codes cleft(Codes v) { return {_mm256_slli_epi16(v.a, N), _mm256_slli_epi16(v.b, N)}; }
TENON_INLINE Sum szero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
TENON_INLINE Sum sadd(Sum v, Sum w) { return {_mm256_add_epi32(v.a, w.a), _mm256_add_epi32(v.b, w.b)}; }
TENON_INLINE Sum sminus(Sum v, int32_t n) {
    const __m256i m = _mm256_set1_epi32(n);
    return {_mm256_sub_epi32(v.a, m), _mm256_sub_epi32(v.b, m)};
}
TENON_INLINE Rows rzero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TENON_INLINE __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
TENON_INLINE Rows rhalf(const uint8_t* p) { return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 16))}; }
TENON_INLINE Rows rbytes(const uint8_t* p) {
    const __m128i v = load16(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}
TENON_INLINE Rows rsigned(const uint8_t* p) {
    const __m128i v = load16(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}
TENON_INLINE Rows rof(Sum s) { return {_mm256_cvtepi32_ps(s.a), _mm256_cvtepi32_ps(s.b)}; }
TENON_INLINE Rows rmul(Rows v, Rows w) { return {_mm256_mul_ps(v.a, w.a), _mm256_mul_ps(v.b, w.b)}; }
TENON_INLINE Rows rscale(Rows v, float n) {
    const __m256 m = _mm256_set1_ps(n);
    return {_mm256_mul_ps(v.a, m), _mm256_mul_ps(v.b, m)};
}
TENON_INLINE Rows rfma(Rows v, Rows w, Rows c) {
    return {_mm256_fmadd_ps(v.a, w.a, c.a), _mm256_fmadd_ps(v.b, w.b, c.b)};
}
TENON_INLINE Rows rfmas(Rows v, float n, Rows c) {
    const __m256 m = _mm256_set1_ps(n);
    return {_mm256_fmadd_ps(v.a, m, c.a), _mm256_fmadd_ps(v.b, m, c.b)};
}
TENON_INLINE void rstore(float* p, Rows v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

TENON_INLINE __m256i four(const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
}

constexpr bool NARROW = true;
TENON_INLINE Part pstep(Part p, Codes w, const int8_t* x) {
    const __m256i v = four(x);
    p = {_mm256_add_epi16(p.a, _mm256_maddubs_epi16(w.a, v)), _mm256_add_epi16(p.b, _mm256_maddubs_epi16(w.b, v))};
    KEEP_ORDER(p.a);
    KEEP_ORDER(p.b);
    return p;
}
TENON_INLINE Sum pdrain(Part p) {
    const __m256i one = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(p.a, one), _mm256_madd_epi16(p.b, one)};
}
constexpr int SIGNED_OFFSET = 0;
TENON_INLINE Codes csigned(Codes w) { return w; }
TENON_INLINE __m256i signed_dot(__m256i w, __m256i x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
TENON_INLINE Sum sstep(Sum s, Codes w, const int8_t* x) {
    const __m256i v = four(x);
    s.a = _mm256_add_epi32(s.a, signed_dot(w.a, v));
    KEEP_ORDER(s.a);
    s.b = _mm256_add_epi32(s.b, signed_dot(w.b, v));
    KEEP_ORDER(s.b);
    return s;
}

#else

struct Codes {
    uint8_t v[64];
};
struct Sum {
    int32_t v[16];
};
using Part = Sum;
struct Rows {
    float v[16];
};
#define TENON_EACH(N, TYPE, WHAT)              \
    TYPE r;                                    \
    for (int i = 0; i < N; ++i) r.v[i] = WHAT; \
    return r;
TENON_INLINE Codes cload(const uint8_t* p) { TENON_EACH(64, Codes, p[i]) }
TENON_INLINE void cstore(uint8_t* p, const Codes& a) { std::memcpy(p, a.v, 64); }
TENON_INLINE Codes cand(const Codes& a, int mask) { TENON_EACH(64, Codes, static_cast<uint8_t>(a.v[i] & mask)) }
TENON_INLINE Codes cor(const Codes& a, const Codes& b) { TENON_EACH(64, Codes, static_cast<uint8_t>(a.v[i] | b.v[i])) }
template <int N> TENON_INLINE Codes cright(const Codes& a) { TENON_EACH(64, Codes, static_cast<uint8_t>(a.v[i] >> N)) }
template <int N> TENON_INLINE Codes cleft(const Codes& a) { TENON_EACH(64, Codes, static_cast<uint8_t>(a.v[i] << N)) }
TENON_INLINE Sum szero() { TENON_EACH(16, Sum, 0) }
TENON_INLINE Sum sadd(const Sum& a, const Sum& b) { TENON_EACH(16, Sum, a.v[i] + b.v[i]) }
TENON_INLINE Sum sminus(const Sum& a, int32_t b) { TENON_EACH(16, Sum, a.v[i] - b) }
TENON_INLINE Codes cminus(const Codes& a, int b) { TENON_EACH(64, Codes, static_cast<uint8_t>(a.v[i] - b)) }
TENON_INLINE Sum sload(const int32_t* p) { TENON_EACH(16, Sum, p[i]) }
template <int N> TENON_INLINE Sum sleft(const Sum& a) { TENON_EACH(16, Sum, a.v[i] * (1 << N)) }
TENON_INLINE Rows rzero() { TENON_EACH(16, Rows, 0.0f) }
TENON_INLINE Rows rhalf(const uint8_t* p) {
    uint16_t h[16];
    std::memcpy(h, p, 32);
    TENON_EACH(16, Rows, f16_to_f32(h[i]))
}
TENON_INLINE Rows rbytes(const uint8_t* p) { TENON_EACH(16, Rows, static_cast<float>(p[i])) }
TENON_INLINE Rows rsigned(const uint8_t* p) { TENON_EACH(16, Rows, static_cast<float>(static_cast<int8_t>(p[i]))) }
TENON_INLINE Rows rof(const Sum& a) { TENON_EACH(16, Rows, static_cast<float>(a.v[i])) }
TENON_INLINE Rows rmul(const Rows& a, const Rows& b) { TENON_EACH(16, Rows, a.v[i] * b.v[i]) }
TENON_INLINE Rows rscale(const Rows& a, float b) { TENON_EACH(16, Rows, a.v[i] * b) }
TENON_INLINE Rows rfma(const Rows& a, const Rows& b, const Rows& c) { TENON_EACH(16, Rows, a.v[i] * b.v[i] + c.v[i]) }
TENON_INLINE Rows rfmas(const Rows& a, float b, const Rows& c) { TENON_EACH(16, Rows, a.v[i] * b + c.v[i]) }
TENON_INLINE void rstore(float* p, const Rows& a) { std::memcpy(p, a.v, 64); }

constexpr bool NARROW = false;
TENON_INLINE Part pstep(const Part& p, const Codes& w, const int8_t* x) {
    TENON_EACH(16, Part, p.v[i] + w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] + w.v[4 * i + 3] * x[3])
}
TENON_INLINE Sum pdrain(const Part& p) { return p; }
constexpr int SIGNED_OFFSET = 0;
TENON_INLINE Codes csigned(const Codes& w) { return w; }
TENON_INLINE Sum sstep(const Sum& s, const Codes& w, const int8_t* x) {
    const int8_t* c = reinterpret_cast<const int8_t*>(w.v);
    TENON_EACH(16, Sum, s.v[i] + c[4 * i] * x[0] + c[4 * i + 1] * x[1] + c[4 * i + 2] * x[2] + c[4 * i + 3] * x[3])
}
#undef TENON_EACH

#endif
#undef KEEP_ORDER
