// Which lines of memory attention asks for before it reads them: over portable vectors, whose prefetches are noted.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

namespace {
std::map<std::uintptr_t, int> asked;  // lines, how often
void note(const void* at) { ++asked[reinterpret_cast<std::uintptr_t>(at) / 64]; }
}  // namespace

#define __builtin_prefetch(at) note(at)
#define TENON_LEVEL asking_attention
#define TENON_LEVEL_NUMBER 0
#include "attention/attention.h"

extern "C" int tenon_attention_plan(const void*);

namespace tenon {
namespace asking_attention {

#include "step/vec.h"

#include "attention/attention.inl"

// Rows that are decoded and a prompt, in one part of a plan: each line that decode rows read is asked for once, but for the
// keys at the start, and no line more.
template <class KV>
static bool is_asked_for_once(int group, int kv_heads, int dim, int block_size, int kv_type) {
    const std::vector<int32_t> lengths = {70, 1, 300, 192, 1100, 40}, starts = {0, 1, 2, 3, 4, 5, 12};
    const auto rows = static_cast<int32_t>(lengths.size());
    const int32_t most = 1100 / block_size + 1, tokens = starts.back(), valid[2] = {tokens, rows}, heads = group * kv_heads;
    const int64_t line = int64_t{2} * kv_heads * block_size * dim;
    const size_t bytes = static_cast<size_t>(rows * most * line) * sizeof(KV);
    auto* cache = static_cast<char*>(std::aligned_alloc(64, bytes));
    __builtin_memset(cache, 0, bytes);
    std::vector<int32_t> table, names, plan(static_cast<size_t>(PLAN_HEADER + 8 * rows + 4 * 2)), counters(static_cast<size_t>(rows * kv_heads));
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t b = 0; b < most; ++b) table.push_back(b * rows + rows - 1 - r);
        names.push_back(r);
    }
    const AttentionPlanParams wanted = {names.data(), starts.data(), lengths.data(), valid, plan.data(), rows, 1, kv_heads, group, 0, 1, 0};
    if (tenon_attention_plan(&wanted) != 0) return false;
    std::vector<float> query(static_cast<size_t>(tokens * heads * dim)), output(query.size()), partials(static_cast<size_t>(rows * MOST_PARTS * heads * (dim + 2)));
    std::vector<float> scratch(static_cast<size_t>(unit_rows(group) * (2 * dim + KEY_BLOCK + 2) + KEY_BLOCK / 2 * dim));
    const AttentionParams params = {query.data(), output.data(), cache, nullptr, table.data(), plan.data(), partials.data(), counters.data(), most, tokens, line,
                                    block_size, heads, kv_heads, dim, 0, 1, 0, kv_type, 1.0f, 0.0f};
    asked.clear();
    attention(params, 0, scratch.data());
    std::map<std::uintptr_t, int> read;
    const int together = IsPaired<KV>::value ? 2 : 1;
    const auto add = [&](const char* at, int64_t size) {
        for (int64_t i = 0; i < size; i += 64) ++read[(reinterpret_cast<std::uintptr_t>(at) + static_cast<std::uintptr_t>(i)) / 64];
    };
    for (int32_t r = 0; r + 1 < rows; ++r)
        for (int32_t head = 0; head < kv_heads; ++head)
            for (int32_t t = 0; t < lengths[static_cast<size_t>(r)]; t += TILE) {
                const int32_t block = table[static_cast<size_t>(r * most + t / block_size)], length = lengths[static_cast<size_t>(r)];
                const char* keys = cache + (block * line + head * 2 * block_size * dim + t % block_size * dim) * static_cast<int64_t>(sizeof(KV));
                const bool is_first = r == 0 && head == 0 && t < KEY_BLOCK;
                if (!is_first) add(keys, static_cast<int64_t>(TILE * dim * sizeof(KV)));
                add(keys + static_cast<int64_t>(block_size * dim * sizeof(KV)), static_cast<int64_t>((least(TILE, length - t) + together - 1) / together * together * dim * sizeof(KV)));
            }
    std::free(cache);
    for (auto& [at, times] : read) times = 1;  // rows of half a line each
    if (asked == read) return true;
    int wrong = 0, twice = 0;
    for (const auto& [at, times] : asked) wrong += read.count(at) == 0, twice += times > 1;
    std::fprintf(stderr, "group %d, %d dims, blocks of %d, type %d: %zu lines asked for, %d of them unread, %d more than once; %zu to be read\n", group, dim,
                 block_size, kv_type, asked.size(), wrong, twice, read.size());
    return false;
}

}  // namespace asking_attention
}  // namespace tenon

bool attention_asks_once() {
    using namespace tenon::asking_attention;
    bool right = true;
    for (const int group : {1, 3, 5, 13})
        for (const int dim : {16, 48, 64, 128})
            for (const int block_size : {16, 48, 64}) {
                right = right && is_asked_for_once<float>(group, 2, dim, block_size, 0);
                right = right && is_asked_for_once<BF16>(group, 2, dim, block_size, 1);
                right = right && is_asked_for_once<F16>(group, 2, dim, block_size, 2);
            }
    return right;
}
