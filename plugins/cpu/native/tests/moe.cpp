// A mixture of experts is what its linears give one token at a time, and a token that is no number harms no other.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "linear/packed.h"
#include "tenon_cpu.h"

namespace {

constexpr int64_t HIDDEN = 96, INNER = 64;

uint32_t state = 7;
float random_value() {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
}

// A linear of weights at random, which lie in `kept`.
void* linear_of(int32_t type, int64_t rows, int64_t columns, int count, std::vector<uint8_t*>& kept, int alike = 0) {
    tenon_linear_part parts[2];
    for (int i = 0; i < count; ++i) {
        const int64_t stored_bytes = rows * tenon::stored_row_bytes(tenon::type_info(type), columns), bytes = tenon_cpu_packed_bytes(type, rows, columns);
        std::vector<uint8_t> stored(static_cast<size_t>(stored_bytes));
        if (type == 0) {
            for (int64_t v = 0; v < rows * columns; ++v) {
                const float value = random_value() * 0.2f;
                std::memcpy(stored.data() + 4 * v, &value, 4);
            }
        } else {  // Q4_1: d 1/64, m -1/8
            for (auto& byte : stored) byte = static_cast<uint8_t>(random_value() * 127 + 127);
            for (int64_t b = 0; b < stored_bytes; b += 20) stored[b] = 0, stored[b + 1] = 0x24, stored[b + 2] = 0, stored[b + 3] = 0xb0;
        }
        void* packed = nullptr;
        if (posix_memalign(&packed, 64, static_cast<size_t>(bytes)) != 0) std::abort();
        kept.push_back(static_cast<uint8_t*>(packed));
        if (tenon_cpu_pack(type, rows, columns, stored.data(), stored_bytes, packed, bytes)) std::abort();
        parts[i] = {packed, bytes, rows, type, 0};
    }
    void* linear = nullptr;
    if (tenon_cpu_linear_new(parts, count, columns, nullptr, (count == 2 ? TENON_SILU_MUL : TENON_PLAIN) + alike, &linear)) std::abort();
    return linear;
}

std::vector<float> product(const void* linear, const float* x, int64_t columns, int64_t rows) {
    std::vector<float> y(static_cast<size_t>(rows));
    const tenon_linear_call call = {linear, x, y.data(), 1, columns, rows, TENON_F32, TENON_F32};
    if (tenon_cpu_linear(&call)) std::abort();
    return y;
}

// y of one token, expert after expert.
std::vector<double> one_by_one(const void* router, const std::vector<void*>& linears, const float* x, int top_k, bool renormalizes) {
    const auto count = static_cast<int64_t>(linears.size() / 2);
    const std::vector<float> scores = product(router, x, HIDDEN, count);
    // Of two scores a bit apart the probabilities may be equal: then the first one counts, as it does for who chooses by them.
    const float top = *std::max_element(scores.begin(), scores.end());
    std::vector<float> probable;
    for (const float score : scores) probable.push_back(std::exp(score - top));
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return probable[static_cast<size_t>(a)] > probable[static_cast<size_t>(b)]; });
    double all = 0, chosen = 0;
    for (int64_t e = 0; e < count; ++e) {
        const double weight = std::exp(static_cast<double>(scores[static_cast<size_t>(order[static_cast<size_t>(e)])]));
        all += weight;
        if (e < top_k) chosen += weight;
    }
    std::vector<double> y(HIDDEN, 0.0);
    for (int k = 0; k < top_k; ++k) {
        const auto e = static_cast<size_t>(order[static_cast<size_t>(k)]);
        const std::vector<float> inner = product(linears[2 * e], x, HIDDEN, INNER), out = product(linears[2 * e + 1], inner.data(), INNER, HIDDEN);
        const double weight = std::exp(static_cast<double>(scores[e])) / (renormalizes ? chosen : all);
        for (size_t c = 0; c < out.size(); ++c) y[c] += weight * static_cast<double>(out[c]);
    }
    return y;
}

bool is_right(const void* moe, const void* router, const std::vector<void*>& linears, int64_t tokens, int top_k, bool renormalizes, bool has_fault, double allowed) {
    const int64_t stride = HIDDEN + 5;
    std::vector<float> x(static_cast<size_t>(tokens * stride)), y(x.size(), 1e30f);
    for (float& value : x) value = random_value();
    if (has_fault) x[3] = NAN;
    const tenon_moe_call call = {moe, x.data(), y.data(), tokens, stride, stride, TENON_F32, 0};
    if (tenon_cpu_moe(&call)) return false;
    for (int64_t t = has_fault ? 1 : 0; t < tokens; ++t) {
        const std::vector<double> wanted = one_by_one(router, linears, x.data() + t * stride, top_k, renormalizes);
        for (int64_t c = 0; c < HIDDEN; ++c) {
            const double found = static_cast<double>(y[static_cast<size_t>(t * stride + c)]);
            if (std::fabs(found - wanted[static_cast<size_t>(c)]) <= allowed) continue;
            std::fprintf(stderr, "experts, token %ld of %ld, top %d, column %ld: %g for %g\n", static_cast<long>(t), static_cast<long>(tokens), top_k, static_cast<long>(c), found, wanted[static_cast<size_t>(c)]);
            return false;
        }
    }
    return !has_fault || std::isnan(y[0]);
}

}  // namespace

// Of Q4_1 or float32, count experts. Not alike: many tokens may be multiplied in bfloat16, one token is not.
bool experts_are_right(int32_t type, int count, int top_k, bool alike) {
    std::vector<uint8_t*> kept;
    void* router = linear_of(0, count, HIDDEN, 1, kept);
    std::vector<void*> linears;
    for (int e = 0; e < count; ++e) {
        linears.push_back(linear_of(type, INNER, HIDDEN, 2, kept, alike ? TENON_ALIKE : 0));
        linears.push_back(linear_of(type, HIDDEN, INNER, 1, kept, alike ? TENON_ALIKE : 0));
    }
    bool is_so = true;
    for (const bool renormalizes : {false, true}) {
        void* moe = nullptr;
        if (tenon_cpu_moe_new(router, linears.data(), count, top_k, renormalizes, &moe)) return false;
        for (const int64_t tokens : {1, 2, 17, 110}) is_so = is_so && is_right(moe, router, linears, tokens, top_k, renormalizes, tokens == 17, alike || type == 0 ? 1e-4 : 3e-3);
        tenon_cpu_moe_free(moe);
    }
    void* moe = nullptr;
    is_so = is_so && tenon_cpu_moe_new(router, linears.data(), count, count + 1, 0, &moe) == TENON_BAD_ARGUMENT;
    is_so = is_so && tenon_cpu_moe_new(linears[0], linears.data(), count, top_k, 0, &moe) == TENON_BAD_ARGUMENT;
    std::swap(linears[0], linears[1]);
    is_so = is_so && tenon_cpu_moe_new(router, linears.data(), count, top_k, 0, &moe) == TENON_BAD_ARGUMENT;
    tenon_cpu_linear_free(router);
    for (void* linear : linears) tenon_cpu_linear_free(linear);
    for (uint8_t* memory : kept) std::free(memory);
    return is_so;
}
