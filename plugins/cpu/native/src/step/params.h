// The structs that the step's kernels take, as `tenon_cpu/step_calls.py` mirrors them. Pointers and numbers only.
//
// type numbers: 0 float32, 1 bfloat16, 2 float16; of caches also 3, int8 with a float32 scale for each token of a head. Row
// counts are of the padded step; what a step really has, lengths, tables and counts, is read through pointers when a kernel
// runs.
#pragma once

#include <cstdint>

namespace tenon {

constexpr int TILE = 16;             // tokens whose keys lie transposed together; blocks are multiples of it
constexpr int MOST_PARTS = 16;       // that a decode row's context is split into
constexpr int LEAST_PART = 64;       // tokens of a part
constexpr int QUERY_ROWS = 64;       // (query, head of the group) pairs of a prefill unit
inline int unit_rows(int group) { return ((group > QUERY_ROWS ? group : QUERY_ROWS) + 15) / 16 * 16; }  // of a unit's memory
constexpr int KEY_BLOCK = 64;        // keys between two rescalings of the softmax
constexpr int PLAN_HEADER = 8;

// One row of an attention plan. A unit is a part of a decode row's keys or a block of a prefill row's queries.
struct RowPlan {
    int32_t table_row;    // of the block table
    int32_t query_start;  // token of the batch
    int32_t num_queries;
    int32_t length;       // keys [0, length); 0: a padding row
    int32_t first_key;    // a multiple of TILE
    int32_t unit_size;    // keys of a part, or queries of a block
    int32_t num_units;
    int32_t splits_keys;
};

// Where a part begins, which one thread computes: unit `unit` of KV head `kv_head` of row `row`.
struct PlanBound {
    int32_t row, kv_head, unit, unused;
};

// plan: int32 [PLAN_HEADER + 8 rows + 4 (parts + 1)] = (parts, rows, tokens of rows, 0...), RowPlans, PlanBounds.
struct AttentionPlanParams {
    const int32_t* rows;
    const int32_t* query_starts;
    const int32_t* seq_lens;
    const int32_t* num_valid;
    int32_t* plan;
    int64_t num_rows;
    int32_t threads, kv_heads, group, window, causal, unused;  // threads: parts to cut a step into
};

// Tokens behind those of the plan's rows are padding: their output is zero.
// cache: [blocks, kv heads, 2, block_size * dim], see attention.inl; blocks lie cache_stride elements apart. partials: float [rows, kv heads, MOST_PARTS,
// group * (dim + 2)]; counters: int32 [rows, kv heads], zero between calls.
struct AttentionParams {
    const void* query;  // [tokens, heads, dim]
    void* output;
    const void* cache;
    const float* sinks;
    const int32_t* block_table;
    const int32_t* plan;
    float* partials;
    int32_t* counters;
    int64_t table_stride, tokens, cache_stride;
    int32_t block_size, heads, kv_heads, dim, window, causal, type, kv_type;
    float scale, soft_cap;
};

// Keys and values [tokens, kv heads, dim], token_stride apart, to their slots.
struct KVWriteParams {
    const void* key;
    const void* value;
    void* cache;
    const int32_t* slots;
    int64_t tokens, key_stride, value_stride, cache_stride;
    int32_t block_size, kv_heads, dim, type, kv_type, unused;
};

// Blocks of one cache to (or, `import`, from) the canonical form [n, 2, block_size, kv heads, dim] of the cache's type; of int8 in float32.
struct KVExchangeParams {
    void* cache;
    void* canonical;
    const int32_t* blocks;
    int64_t count, cache_stride;
    int32_t block_size, kv_heads, dim, kv_type, imports, unused;
};

struct QKNormRopeWriteParams {
    const void* qkv;  // [tokens, (heads + 2 kv heads) * dim]
    void* query;      // [tokens, heads, dim]
    const int32_t* positions;
    const float* cos_sin;  // [positions, rotary_dim] or null
    const void* q_weight;  // [dim] or null
    const void* k_weight;
    void* cache;
    const int32_t* slots;
    int64_t tokens, cache_stride;
    int32_t block_size, heads, kv_heads, dim, rotary_dim, interleaved, type, kv_type;
    float q_eps, k_eps, q_offset, k_offset;
};

// y = norm(x + residual), total = x + residual; without residual both of x alone and total is not written.
struct RMSNormParams {
    const void* x;
    const void* residual;
    const void* weight;
    void* y;
    void* total;
    int64_t rows, hidden;
    float eps, offset;
    int32_t type, unused;
};

// y [rows, width] = activation(x[:, :width]) * x[:, width:]. activation: 0 silu, 1 gelu, 2 gelu_tanh, 3 relu.
struct ActivationMulParams {
    const void* x;
    void* y;
    int64_t rows, width;
    int32_t activation, type;
};

// Lines of `line` bytes: target[i] = source[index[i]], or, `scatters`, target[index[i]] = source[i] in order.
struct GatherParams {
    const void* source;
    void* target;
    const int32_t* index;
    int64_t count, line;
    int32_t scatters, unused;
};

// Of each element: 0 int32 + amount, 1 int32 < amount as uint8, 2 float32 * factor, 3 float32 / factor.
struct ScalarParams {
    const void* source;
    void* target;
    int64_t count;
    int32_t operation, amount;
    float factor;
    int32_t unused;
};

// target = condition ? first : second; condition uint8, the rest int32.
struct ChooseParams {
    const uint8_t* condition;
    const int32_t* first;
    const int32_t* second;
    int32_t* target;
    int64_t count;
};

// From a step's index tensors to token ids and slots; slots: [groups, tokens].
struct PrepareInputsParams {
    const int32_t* token_ids;
    const int32_t* positions;
    const int32_t* token_rows;
    const int32_t* rows;
    const int32_t* num_valid;
    const int32_t* last_tokens;
    const int32_t* block_tables;  // [groups, all rows, blocks]
    int32_t* ids;
    int32_t* slots;
    int64_t tokens, all_rows, blocks;
    int32_t groups, block_size;
};

// One row's parameters are 13 int32, as RowColumn says. mode bits: 1 noise, 2 filters, 4 penalties, 8 edits, 16 grammar.
struct SampleParams {
    const void* logits;  // [rows, vocab]
    const int32_t* params;
    const int32_t* positions;
    int32_t* counts;      // [slots, 2, vocab]
    const float* edits;   // [slots, 2, vocab]
    const int32_t* grammar_mask;
    int32_t* tokens;
    int64_t rows, vocab;
    int32_t mode, type;
};

// chosen, rank, top_ids [rows, k], top [rows, k] of `tokens`.
struct TokenLogprobsParams {
    const void* logits;
    const int32_t* tokens;
    float* chosen;
    int32_t* rank;
    int32_t* top_ids;
    float* top;
    int64_t rows, vocab, k;
    int32_t type, unused;
};

// What ranks say to each other through memory that they share: a word that is not zero once a rank is gone, the ranks'
// counters, a line of memory each, zero at first, then twice a slot of `slot_bytes` (a multiple of 64) for every rank.
struct ExchangeParams {
    void* x;       // count elements: this rank's, then the sum, or what rank `source` had
    void* shared;
    int64_t count, slot_bytes, patience_ms;  // for the others
    int32_t rank, size, type, source;        // source: -1, a sum. type: -1, bytes, which are not added
};

}  // namespace tenon
