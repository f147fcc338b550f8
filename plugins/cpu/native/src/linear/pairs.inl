// A vector of 16 rows x 2 columns of int16 weights, and its dot product with two int16 activations, by level.
// Included inside namespace tenon::TENON_LEVEL, after bytes.inl.
//
// A step's four columns a row become two vectors: columns 0 and 2, then 1 and 3, which is one mask and one shift.

#if TENON_LEVEL_NUMBER >= 2
using Pairs = __m512i;
TENON_INLINE Pairs peven(Codes w, bool is_signed) {
    return is_signed ? _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8) : _mm512_and_si512(w, _mm512_set1_epi16(255));
}
TENON_INLINE Pairs podd(Codes w, bool is_signed) {
    return is_signed ? _mm512_srai_epi16(w, 8) : _mm512_srli_epi16(w, 8);
}
TENON_INLINE Pairs pload(const int16_t* p) { return _mm512_load_si512(p); }
TENON_INLINE void pstore(int16_t* p, Pairs w) { _mm512_store_si512(p, w); }
TENON_INLINE __m512i two(const int16_t* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    return _mm512_set1_epi32(word);
}
TENON_INLINE Sum pdot(Sum s, Pairs w, const int16_t* x) {
#if TENON_LEVEL_NUMBER >= 3
    return _mm512_dpwssd_epi32(s, w, two(x));
#else
    return _mm512_add_epi32(s, _mm512_madd_epi16(w, two(x)));
#endif
}
TENON_INLINE Rows rload(const float* p) { return {_mm512_loadu_ps(p)}; }
#elif TENON_LEVEL_NUMBER == 1
using Pairs = Codes;
TENON_INLINE __m256i even_of(__m256i w, bool is_signed) {
    return is_signed ? _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8) : _mm256_and_si256(w, _mm256_set1_epi16(255));
}
TENON_INLINE Pairs peven(Codes w, bool is_signed) { return {even_of(w.a, is_signed), even_of(w.b, is_signed)}; }
TENON_INLINE Pairs podd(Codes w, bool is_signed) {
    if (is_signed) return {_mm256_srai_epi16(w.a, 8), _mm256_srai_epi16(w.b, 8)};
    return {_mm256_srli_epi16(w.a, 8), _mm256_srli_epi16(w.b, 8)};
}
TENON_INLINE Pairs pload(const int16_t* p) { return cload(reinterpret_cast<const uint8_t*>(p)); }
TENON_INLINE void pstore(int16_t* p, Pairs w) { cstore(reinterpret_cast<uint8_t*>(p), w); }
TENON_INLINE __m256i two(const int16_t* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
}
TENON_INLINE Sum pdot(Sum s, Pairs w, const int16_t* x) {
    const __m256i v = two(x);
    s.a = _mm256_add_epi32(s.a, _mm256_madd_epi16(w.a, v));
    asm("" : "+v"(s.a));  // as KEEP_ORDER in bytes.inl
    s.b = _mm256_add_epi32(s.b, _mm256_madd_epi16(w.b, v));
    asm("" : "+v"(s.b));
    return s;
}
TENON_INLINE Rows rload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
#else
struct Pairs {
    int16_t v[32];
};
TENON_INLINE Pairs peven(const Codes& w, bool is_signed) {
    Pairs r;
    for (int i = 0; i < 32; ++i) r.v[i] = is_signed ? static_cast<int8_t>(w.v[2 * i]) : w.v[2 * i];
    return r;
}
TENON_INLINE Pairs podd(const Codes& w, bool is_signed) {
    Pairs r;
    for (int i = 0; i < 32; ++i) r.v[i] = is_signed ? static_cast<int8_t>(w.v[2 * i + 1]) : w.v[2 * i + 1];
    return r;
}
TENON_INLINE Pairs pload(const int16_t* p) {
    Pairs r;
    std::memcpy(r.v, p, 64);
    return r;
}
TENON_INLINE void pstore(int16_t* p, const Pairs& w) { std::memcpy(p, w.v, 64); }
TENON_INLINE Sum pdot(const Sum& s, const Pairs& w, const int16_t* x) {
    Sum r;
    for (int i = 0; i < 16; ++i) r.v[i] = s.v[i] + w.v[2 * i] * x[0] + w.v[2 * i + 1] * x[1];
    return r;
}
TENON_INLINE Rows rload(const float* p) {
    Rows r;
    std::memcpy(r.v, p, 64);
    return r;
}
#endif
