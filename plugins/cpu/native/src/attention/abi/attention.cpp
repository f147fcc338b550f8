// The attention family's exports: planning, and the split of each kernel's work over threads.
#include <cstddef>
#include <cstring>
#include <new>

using std::size_t;

#include "attention/attention.h"
#include "step/split.h"
#include "tape.h"

namespace tenon {
namespace {

constexpr int64_t ALONE = 8;   // lines of q, k and v that are not worth a second thread
constexpr int64_t FIXED = 24;  // a unit's own cost, in keys

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

RowPlan plan_row(const AttentionPlanParams& p, int64_t row) {
    RowPlan plan{};
    plan.table_row = p.rows[row];
    plan.query_start = p.query_starts[row];
    plan.num_queries = p.query_starts[row + 1] - plan.query_start;
    plan.num_units = 1;
    if (row >= p.num_valid[1]) {
        plan.unit_size = plan.num_queries;
        plan.num_units = plan.num_queries > 0 ? 1 : 0;
        return plan;
    }
    plan.length = p.seq_lens[row];
    if (plan.num_queries == 1) {
        const int32_t first = p.window > 0 && plan.length > p.window ? plan.length - p.window : 0;
        plan.first_key = first / TILE * TILE;
        const int32_t keys = plan.length - plan.first_key, unit = MOST_PARTS * TILE;
        const int32_t part = (keys + unit - 1) / unit * TILE;
        plan.unit_size = part < LEAST_PART ? LEAST_PART : part;
        plan.num_units = (keys + plan.unit_size - 1) / plan.unit_size;
        plan.splits_keys = 1;
    } else {
        plan.unit_size = p.group < QUERY_ROWS ? QUERY_ROWS / p.group : 1;
        plan.num_units = (plan.num_queries + plan.unit_size - 1) / plan.unit_size;
    }
    return plan;
}

int64_t unit_cost(const AttentionPlanParams& p, const RowPlan& row, int32_t unit) {
    if (row.length == 0) return 1;
    if (row.splits_keys) {
        const int64_t first = static_cast<int64_t>(unit) * row.unit_size;
        return FIXED + least(row.unit_size, row.length - row.first_key - first);
    }
    const int64_t first = static_cast<int64_t>(unit) * row.unit_size, queries = least(row.unit_size, row.num_queries - first);
    int64_t keys = p.causal ? row.length - row.num_queries + first + queries : row.length;
    if (p.window) keys = least(keys, p.window + queries);
    return FIXED + keys * queries / 2;
}

int plan_attention(const AttentionPlanParams& p) {
    const int threads = num_threads() == 1 ? 1 : p.threads;  // parts of the plan: more than threads, so that none waits long
    auto* rows = reinterpret_cast<RowPlan*>(p.plan + PLAN_HEADER);
    auto* bounds = reinterpret_cast<PlanBound*>(rows + p.num_rows);
    p.plan[0] = threads;
    p.plan[1] = static_cast<int32_t>(p.num_rows);
    p.plan[2] = p.query_starts[p.num_rows];
    int64_t total = 0;
    for (int64_t row = 0; row < p.num_rows; ++row) {
        rows[row] = plan_row(p, row);
        for (int32_t unit = 0; unit < rows[row].num_units; ++unit) total += p.kv_heads * unit_cost(p, rows[row], unit);
    }
    int thread = 0;
    int64_t before = 0;
    for (int64_t row = 0; row < p.num_rows; ++row) {
        for (int32_t head = 0; head < p.kv_heads; ++head) {
            for (int32_t unit = 0; unit < rows[row].num_units; ++unit) {
                const int64_t cost = unit_cost(p, rows[row], unit);
                while (thread < threads && (before + cost / 2) * threads >= total * thread)
                    bounds[thread++] = {static_cast<int32_t>(row), head, unit, 0};
                before += cost;
            }
        }
    }
    while (thread <= threads) bounds[thread++] = {static_cast<int32_t>(p.num_rows), 0, 0, 0};
    return TENON_OK;
}

struct Scratch {
    float* data = nullptr;
    size_t size = 0;
    ~Scratch() { ::operator delete(data, std::align_val_t{64}); }
    float* of(size_t wanted) {
        if (wanted > size) {
            ::operator delete(data, std::align_val_t{64});
            data = nullptr;
            size = 0;
            data = static_cast<float*>(::operator new(wanted * sizeof(float), std::align_val_t{64}));
            size = wanted;
        }
        return data;
    }
};
thread_local Scratch scratch;

int run_attention(const AttentionParams& p) {
    const int rows = unit_rows(p.heads / p.kv_heads);
    const size_t floats = static_cast<size_t>(rows) * (2 * p.dim + KEY_BLOCK + 2) + static_cast<size_t>(KEY_BLOCK / 2 * p.dim);
    const auto& kernels = attention_kernels();
    const int64_t line = static_cast<int64_t>(p.heads) * p.dim * (p.type == 0 ? 4 : 2), known = p.plan[2];
    if (known < p.tokens)
        std::memset(static_cast<char*>(p.output) + known * line, 0, static_cast<size_t>((p.tokens - known) * line));
    const int planned = p.plan[0];
    if (planned == 1) {
        kernels.attention(p, 0, scratch.of(floats));
        return TENON_OK;
    }
    const int threads = num_threads();
    Work work(planned, threads, 1);
    parallel(threads, [&](int thread, int) {
        for (Range range; work.take(thread, range);)
            kernels.attention(p, static_cast<int>(range.begin), scratch.of(floats));
    });
    return TENON_OK;
}

int run_write_kv(const KVWriteParams& p) {
    split(p.tokens, ALONE, [&](int64_t begin, int64_t end) { attention_kernels().write_kv(p, begin, end); });
    return TENON_OK;
}

int run_exchange(const KVExchangeParams& p) {
    split(p.count, 1, [&](int64_t begin, int64_t end) { attention_kernels().exchange_blocks(p, begin, end); });
    return TENON_OK;
}

int run_qk_norm_rope_write(const QKNormRopeWriteParams& p) {
    const int64_t lines = p.tokens * (p.heads + 2 * p.kv_heads);
    split(lines, 4 * ALONE, [&](int64_t begin, int64_t end) { attention_kernels().qk_norm_rope_write(p, begin, end); });
    return TENON_OK;
}

}  // namespace

TENON_KERNEL(tenon_attention_plan, plan_attention, AttentionPlanParams)
TENON_KERNEL(tenon_attention, run_attention, AttentionParams)
TENON_KERNEL(tenon_write_kv, run_write_kv, KVWriteParams)
TENON_KERNEL(tenon_exchange_blocks, run_exchange, KVExchangeParams)
TENON_KERNEL(tenon_qk_norm_rope_write, run_qk_norm_rope_write, QKNormRopeWriteParams)

}  // namespace tenon
