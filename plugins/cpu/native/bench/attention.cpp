// Times attention as SmolLM2-135M has it, without Python: a prefill of a layer, and steps of rows that are decoded, whose keys
// and values come from memory: those of all layers are more than caches hold.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "step/params.h"
#include "tenon_cpu.h"

extern "C" {
int tenon_attention_plan(const void*);
int tenon_attention(const void*);
}

namespace {

constexpr int BLOCK_SIZE = 64, HEADS = 9, KV_HEADS = 3, DIM = 64, LAYERS = 30;

uint32_t state = 1;
uint16_t random_bf16() {  // of either sign, 0.5 to 1
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>((state >> 16 & 0x807f) | 0x3f00);
}

// Memory in large pages where the system has them, as the platform's own cache.
struct Cache {
    uint16_t* data;
    explicit Cache(size_t size) : data(static_cast<uint16_t*>(std::aligned_alloc(PAGE, (size * 2 + PAGE - 1) / PAGE * PAGE))) {
        if (data == nullptr) std::exit(2);
#if defined(__linux__)
        madvise(data, (size * 2 + PAGE - 1) / PAGE * PAGE, MADV_HUGEPAGE);
#endif
        for (size_t i = 0; i < size; ++i) data[i] = random_bf16();
    }
    ~Cache() { std::free(data); }
    static constexpr size_t PAGE = size_t{2} << 20;
};

// `rows` rows of `queries` queries each, at the end of `length` tokens, in `layers` layers one after the other: the median
// of rounds and the least, in seconds.
std::pair<double, double> time_rows(int layers, int32_t rows, int32_t queries, int32_t length, int threads) {
    using Clock = std::chrono::steady_clock;
    constexpr int heads = HEADS, kv_heads = KV_HEADS, dim = DIM;
    const int64_t blocks = (length + BLOCK_SIZE - 1) / BLOCK_SIZE, line = int64_t{2} * kv_heads * BLOCK_SIZE * dim;
    const Cache cache(static_cast<size_t>(rows * blocks * layers * line));
    std::vector<uint16_t> query(static_cast<size_t>(rows * queries * heads * dim)), output(query.size());
    for (auto& value : query) value = random_bf16();
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
    tenon::AttentionParams params = {query.data(), output.data(), cache.data, nullptr, table.data(), plan.data(), partials.data(), counters.data(), blocks,
                                     starts.back(), layers * line, BLOCK_SIZE, heads, kv_heads, dim, 0, 1, 1, 1, 1.0f / std::sqrt(static_cast<float>(dim)), 0.0f};
    if (tenon_attention_plan(&wanted) != TENON_OK) std::exit(2);
    std::vector<double> rounds;
    for (const auto begin = Clock::now(); rounds.size() < 3 || Clock::now() - begin < std::chrono::milliseconds(300);) {
        const auto start = Clock::now();
        for (int layer = 0; layer < layers; ++layer) {
            params.cache = cache.data + layer * line;
            if (tenon_attention(&params) != TENON_OK) std::exit(2);
        }
        rounds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(rounds.begin(), rounds.end());
    return {rounds[rounds.size() / 2], rounds[0]};
}

}  // namespace

void time_attention(int threads, const char* isa) {
    std::printf("%-11s attention of %d heads of %d, %d of them with keys, bfloat16: prefill of 512, a layer: %.3f ms\n", isa, HEADS, DIM, KV_HEADS, time_rows(1, 1, 512, 512, threads).first * 1e3);
    for (const int32_t length : {192, 512})
        for (const int32_t rows : {16, 32}) {
            const auto [seconds, least] = time_rows(LAYERS, rows, 1, length, threads);
            const double bytes = 4.0 * LAYERS * rows * length * KV_HEADS * DIM;
            std::printf("%-11s %d rows at %d, %d layers: %.3f ms, least %.3f, %.1f GB/s\n", isa, rows, length, LAYERS, seconds * 1e3, least * 1e3, bytes / seconds / 1e9);
            std::fflush(stdout);
        }
}
