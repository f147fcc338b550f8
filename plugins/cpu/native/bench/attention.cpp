// Times attention as a Llama-like layer has it, without Python: a prefill, and a step of rows that are decoded.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "step/params.h"
#include "tenon_cpu.h"

extern "C" {
int tenon_attention_plan(const void*);
int tenon_attention(const void*);
}

namespace {

constexpr int BLOCK_SIZE = 64;

uint32_t state = 1;
uint16_t random_bf16() {  // of either sign, 0.5 to 1
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>((state >> 16 & 0x807f) | 0x3f00);
}

// `rows` rows of `queries` queries each, at the end of `length` tokens: the median of rounds, in seconds.
double time_rows(int heads, int kv_heads, int dim, int32_t rows, int32_t queries, int32_t length, int threads) {
    using Clock = std::chrono::steady_clock;
    const int64_t blocks = (length + BLOCK_SIZE - 1) / BLOCK_SIZE, line = int64_t{2} * kv_heads * BLOCK_SIZE * dim;
    std::vector<uint16_t> cache(static_cast<size_t>(rows * blocks * line)), query(static_cast<size_t>(rows * queries * heads * dim)), output(query.size());
    for (auto* all : {&cache, &query})
        for (auto& value : *all) value = random_bf16();
    std::vector<int32_t> table, starts = {0}, lengths, names;
    for (int32_t r = 0; r < rows; ++r) {
        for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(b * rows + r));
        starts.push_back((r + 1) * queries);
        lengths.push_back(length);
        names.push_back(r);
    }
    const int32_t parts = 4 * threads, valid[2] = {starts.back(), rows};
    std::vector<int32_t> plan(static_cast<size_t>(tenon::PLAN_HEADER + 8 * rows + 4 * (parts + 1))), counters(static_cast<size_t>(rows * kv_heads));
    std::vector<float> partials(static_cast<size_t>(rows * tenon::MOST_PARTS * heads * (dim + 2)));
    const tenon::AttentionPlanParams wanted = {names.data(), starts.data(), lengths.data(), valid, plan.data(), rows, parts, kv_heads, heads / kv_heads, 0, 1, 0};
    const tenon::AttentionParams params = {query.data(), output.data(), cache.data(), nullptr, table.data(), plan.data(), partials.data(), counters.data(), blocks,
                                           starts.back(), line, BLOCK_SIZE, heads, kv_heads, dim, 0, 1, 1, 1, 1.0f / std::sqrt(static_cast<float>(dim)), 0.0f};
    if (tenon_attention_plan(&wanted) != TENON_OK) std::exit(2);
    std::vector<double> rounds;
    for (const auto begin = Clock::now(); rounds.size() < 3 || Clock::now() - begin < std::chrono::milliseconds(300);) {
        const auto start = Clock::now();
        if (tenon_attention(&params) != TENON_OK) std::exit(2);
        rounds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
}

}  // namespace

void time_attention(int threads, const char* isa) {
    const double prefill = time_rows(9, 3, 64, 1, 512, 512, threads), decode = time_rows(9, 3, 64, 16, 1, 512, threads);
    std::printf("%-11s attention of 9 heads of 64, 3 of them with keys, bfloat16, a layer: prefill of 512 %.3f ms, 16 rows at 512 %.3f ms\n", isa, prefill * 1e3, decode * 1e3);
    std::fflush(stdout);
}
