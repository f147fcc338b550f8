// Paged attention: one loop nest for decode and prefill, flash-style (Dao 2023, arXiv 2307.08691).
//
//     cache [blocks, kv heads, 2, block_size * dim], tiles of TILE = 16 tokens:
//     keys    tile [dim, 16]        values  tile [16, dim]           float32, float16
//             tile [dim/2, 16, 2]           tile [8, dim, 2]         bfloat16: two of what is summed lie together
//             tile [dim, 16], float [16]    tile [16, dim], float [16]    int8: codes, then each token's scale
//
// A unit is (row, KV head, queries, keys): the heads of a group are rows of one small product, so K and V are read once
// a group. Decode rows are split into parts by their own length alone, so a token's result never depends on the batch;
// the last part to finish merges them all in order. Unwritten slots may hold NaN: keys are masked, values not read.
//
// A decode row reads each tile once, from memory, in blocks that lie anywhere: while keys are scored their values are asked
// for, and while values are summed the keys that follow, of this unit or of the next, so half a key block's memory ahead of
// what is read. That is what decode waits for.

constexpr float NEGATIVE_INFINITY = -__builtin_inff();
constexpr int TILE_VECS = TILE / W;
constexpr int MOST_ROWS = W == 16 ? 12 : 6;  // rows of a register block

template <class T>
struct IsPaired {
    static constexpr bool value = false;
};
template <>
struct IsPaired<BF16> {
    static constexpr bool value = true;
};

// Whether a token's keys and its values of a head are codes of a scale each.
template <class T>
struct IsScaled {
    static constexpr bool value = false;
};
template <>
struct IsScaled<I8> {
    static constexpr bool value = true;
};

// Elements that a token takes in a tile.
template <class KV>
constexpr int64_t width_of(int dim) {
    return dim + (IsScaled<KV>::value ? static_cast<int>(sizeof(float) / sizeof(KV)) : 0);
}
// The scales of a tile's sixteen tokens.
template <class KV>
static inline const float* scales_of(const KV* tile, int dim) {
    return reinterpret_cast<const float*>(tile + static_cast<int64_t>(TILE) * dim);
}

constexpr int BLOCK_TILES = KEY_BLOCK / TILE;
static_assert(BLOCK_TILES % 2 == 0, "tiles are scored by twos");

// Tiles of one key block; null: not there.
template <class KV>
using Tiles = const KV* [BLOCK_TILES];

static inline int least(int a, int b) { return a < b ? a : b; }
static inline int most(int a, int b) { return a > b ? a : b; }

#include "attention/ahead.inl"
#include "attention/products.inl"

struct Unit {
    const RowPlan* row;
    int kv_head;
    int first_query, num_queries;  // of the row
    int first_key, end_key;
};

// The tile of keys; its values lie a block's keys behind it.
template <class KV>
static const KV* tile_at(const AttentionParams& p, const Unit& unit, int key) {
    const int32_t block = p.block_table[unit.row->table_row * p.table_stride + key / p.block_size];
    const int64_t line = p.block_size * width_of<KV>(p.dim);
    const KV* base = static_cast<const KV*>(p.cache) + block * p.cache_stride + unit.kv_head * 2 * line;
    return base + (key % p.block_size) / TILE * TILE * width_of<KV>(p.dim);
}

// One row's scores of a key block, times `scale`, become weights, from the row's start on, and where values have scales
// weights of their codes; its sums are rescaled.
template <class Weight, class KV>
static inline void soften(const AttentionParams& p, float* scores, const Tiles<KV>& values, float scale, int from, int to, int width, float* sums, float& top, float& total) {
    Vec by = vset(scale);
    if (p.soft_cap > 0) {
        const Vec cap = vset(p.soft_cap), share = vset(scale / p.soft_cap);
        for (int i = 0; i < width; i += W) vstore(scores + i, cap * vtanh(vload(scores + i) * share));
        by = vset(scale = 1.0f);
    }
    for (int i = 0; i < from; ++i) scores[i] = NEGATIVE_INFINITY;
    for (int i = to; i < width; ++i) scores[i] = NEGATIVE_INFINITY;
    Vec best = vload(scores);
    for (int i = W; i < width; i += W) best = vmax(best, vload(scores + i));
    const float found = vtop(best) * scale, now = found > top ? found : top;
    Weight* weights = reinterpret_cast<Weight*>(scores);  // never past what was read
    if (now == NEGATIVE_INFINITY) {  // nothing visible so far
        for (int i = 0; i < width; i += W) vstore(weights + i, vzero());
        return;
    }
    const Vec shift = vset(-now);
    Vec sum = vzero();
    for (int i = 0; i < width; i += W) {
        const Vec weight = vexp(vfma(vload(scores + i), by, shift));
        sum = sum + weight;
        if constexpr (IsScaled<KV>::value) vstore(weights + i, weight * vload(scales_of(values[i / TILE], p.dim) + i % TILE));
        else vstore(weights + i, weight);
    }
    if (now != top && top != NEGATIVE_INFINITY) {  // else there are no sums yet
        const Vec keep = vexp(vset(top - now));
        float kept[W];
        vstore(kept, keep);
        total *= kept[0];
        for (int d = 0; d < p.dim; d += W) vstore(sums + d, vload(sums + d) * keep);
    }
    top = now;
    total += vsum(sum);
}

// The tiles of a key block of the unit, none of no unit.
template <class KV>
static void find_keys(const AttentionParams& p, const Unit* unit, int key, Tiles<KV>& keys) {
    for (int t = 0; t < BLOCK_TILES; ++t) {
        const int at = key + t * TILE;
        keys[t] = unit != nullptr && at < unit->end_key ? tile_at<KV>(p, *unit, at) : nullptr;
    }
}

template <class KV>
static void find_values(const AttentionParams& p, const Tiles<KV>& keys, Tiles<KV>& values) {
    for (int t = 0; t < BLOCK_TILES; ++t) values[t] = keys[t] == nullptr ? nullptr : keys[t] + p.block_size * width_of<KV>(p.dim);
}

// What is read of `count` tokens' keys or values.
template <class KV>
static Soon soon_of(const Tiles<KV>& tiles, int count, bool are_keys, int dim) {
    constexpr int BYTES = static_cast<int>(sizeof(KV));
    const int tokens = are_keys ? TILE : IsPaired<KV>::value ? 2 : 1;  // that are read together
    Soon soon;
    soon.tile_bytes = TILE * static_cast<int>(width_of<KV>(dim)) * BYTES;
    for (int t = 0; t < BLOCK_TILES; ++t) {
        soon.tiles[t] = reinterpret_cast<const char*>(tiles[t]);
        const int asked = (least(TILE, most(0, count - t * TILE)) + tokens - 1) / tokens * tokens;
        soon.bytes[t] = IsScaled<KV>::value && asked > 0 ? soon.tile_bytes : asked * dim * BYTES;
    }
    return soon;
}

// next: the unit after this one, or null.
template <class P, class T, class KV>
static void compute_unit(const AttentionParams& p, const Unit& unit, const UnitMemory& memory, const Unit* next) {
    const int group = p.heads / p.kv_heads, dim = p.dim, rows = unit.num_queries * group;
    const int first_position = unit.row->length - unit.row->num_queries + unit.first_query;
    const bool asks = unit.row->splits_keys != 0;
    for (int r = 0; r < rows; ++r) {
        const int64_t token = unit.row->query_start + unit.first_query + r / group;
        const T* query = static_cast<const T*>(p.query) + (token * p.heads + unit.kv_head * group + r % group) * dim;
        P::take(query, dim, p.scale, memory, r);
        for (int d = 0; d < dim; d += W) vstore(memory.sums + r * dim + d, vzero());
        memory.top[r] = NEGATIVE_INFINITY;
        memory.total[r] = 0;
    }
    P::begin(memory, rows, dim);
    Tiles<KV> tiles[2], values;
    find_keys<KV>(p, &unit, unit.first_key, tiles[0]);
    for (int key = unit.first_key, now = 0; key < unit.end_key; key += KEY_BLOCK, now = 1 - now) {
        const int count = least(KEY_BLOCK, unit.end_key - key), width = (count + P::WIDTH - 1) / P::WIDTH * P::WIDTH;
        const bool is_last = key + KEY_BLOCK >= unit.end_key;
        const Unit* then = is_last ? next : &unit;
        find_values<KV>(p, tiles[now], values);
        const int then_key = is_last && next != nullptr ? next->first_key : key + KEY_BLOCK;
        find_keys<KV>(p, then, then_key, tiles[1 - now]);
        const Soon next_values = soon_of<KV>(values, count, false, dim);
        const Soon next_keys = soon_of<KV>(tiles[1 - now], then == nullptr ? 0 : then->end_key - then_key, true, dim);
        P::score(memory, rows, dim, tiles[now], asks ? &next_values : nullptr);
        for (int r = 0; r < rows; ++r) {
            const int position = first_position + r / group;
            const int to = p.causal ? least(count, position + 1 - key) : count;
            const int from = p.window ? most(0, position + 1 - p.window - key) : 0;
            soften<typename P::Weight, KV>(p, memory.scores + r * KEY_BLOCK, values, P::SCALES_QUERIES ? 1.0f : p.scale, least(from, width), most(to, 0), width,
                                       memory.sums + r * dim, memory.top[r], memory.total[r]);
        }
        P::mix(memory, rows, dim, values, count, asks ? &next_keys : nullptr);
    }
    P::end();
}

// sums / total to the output's row, with a sink in the total.
template <class T>
static void finish_row(const AttentionParams& p, int64_t token, int head, const float* sums, float top, float total) {
    float share = 1.0f;
    if (p.sinks != nullptr) {
        const float sink = p.sinks[head], now = sink > top ? sink : top;
        float both[2 * W];
        vstore(both, vexp(vset(top - now)));
        vstore(both + W, vexp(vset(sink - now)));
        share = both[0];
        total = total * both[0] + both[W];
    }
    const Vec scale = vset(total > 0 ? share / total : 0.0f);
    T* output = static_cast<T*>(p.output) + (token * p.heads + head) * p.dim;
    for (int d = 0; d < p.dim; d += W) vstore(output + d, vload(sums + d) * scale);
}

// parts of a (row, KV head): sums [part, group, dim], then (top, total) [part, group, 2]
static inline float* parts_of(const AttentionParams& p, int row, int kv_head) {
    const int group = p.heads / p.kv_heads;
    return p.partials + (static_cast<int64_t>(row) * p.kv_heads + kv_head) * MOST_PARTS * group * (p.dim + 2);
}

template <class T>
static void merge_parts(const AttentionParams& p, const Unit& unit, const float* parts, int count, float* sums) {
    const int group = p.heads / p.kv_heads, dim = p.dim;
    const float* stats = parts + MOST_PARTS * group * dim;
    for (int g = 0; g < group; ++g) {
        float top = NEGATIVE_INFINITY, total = 0;
        for (int i = 0; i < count; ++i) top = stats[(i * group + g) * 2] > top ? stats[(i * group + g) * 2] : top;
        for (int d = 0; d < dim; d += W) vstore(sums + d, vzero());
        for (int i = 0; i < count; ++i) {
            const Vec share = vexp(vset(stats[(i * group + g) * 2] - top));
            float shares[W];
            vstore(shares, share);
            total += stats[(i * group + g) * 2 + 1] * shares[0];
            const float* part = parts + (i * group + g) * dim;
            for (int d = 0; d < dim; d += W) vstore(sums + d, vfma(vload(part + d), share, vload(sums + d)));
        }
        finish_row<T>(p, unit.row->query_start, unit.kv_head * group + g, sums, top, total);
    }
}

static inline Unit unit_of(const AttentionParams& p, const RowPlan& row, int kv_head, int index) {
    Unit unit{&row, kv_head, 0, 1, row.first_key, row.length};
    if (row.splits_keys) {
        unit.first_key = row.first_key + index * row.unit_size;
        unit.end_key = least(row.length, unit.first_key + row.unit_size);
    } else {
        unit.first_query = index * row.unit_size;
        unit.num_queries = least(row.unit_size, row.num_queries - unit.first_query);
        const int first = row.length - row.num_queries + unit.first_query;
        if (p.causal) unit.end_key = first + unit.num_queries;
        if (p.window) unit.first_key = most(0, first + 1 - p.window) / TILE * TILE;
    }
    return unit;
}

template <class P, class T, class KV>
static void run_unit(const AttentionParams& p, int row_index, const Unit& unit, int index, const UnitMemory& memory, const Unit* next) {
    const int group = p.heads / p.kv_heads, dim = p.dim, kv_head = unit.kv_head;
    const RowPlan& row = *unit.row;
    if (row.length == 0) {
        for (int q = 0; q < row.num_queries; ++q) {
            T* output = static_cast<T*>(p.output) + (static_cast<int64_t>(row.query_start + q) * p.heads + kv_head * group) * dim;
            for (int d = 0; d < group * dim; d += W) vstore(output + d, vzero());
        }
        return;
    }
    compute_unit<P, T, KV>(p, unit, memory, next);
    if (!row.splits_keys || row.num_units == 1) {
        for (int r = 0; r < unit.num_queries * group; ++r)
            finish_row<T>(p, row.query_start + unit.first_query + r / group, kv_head * group + r % group, memory.sums + r * dim, memory.top[r], memory.total[r]);
        return;
    }
    float* parts = parts_of(p, row_index, kv_head);
    float* stats = parts + MOST_PARTS * group * dim;
    __builtin_memcpy(parts + index * group * dim, memory.sums, sizeof(float) * group * dim);
    for (int g = 0; g < group; ++g) {
        stats[(index * group + g) * 2] = memory.top[g];
        stats[(index * group + g) * 2 + 1] = memory.total[g];
    }
    int32_t* counter = p.counters + static_cast<int64_t>(row_index) * p.kv_heads + kv_head;
    if (__atomic_add_fetch(counter, 1, __ATOMIC_ACQ_REL) == row.num_units) {
        __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
        merge_parts<T>(p, unit, parts, row.num_units, memory.sums);
    }
}

// Tiles pay where sixteen rows are used well: a decode row of a small group waits for memory, with vectors as with tiles.
template <class T, class KV>
static void run_any_unit(const AttentionParams& p, int row_index, const Unit& unit, int index, const UnitMemory& memory, const Unit* next) {
#ifdef TENON_TILES
    if constexpr (IsPaired<T>::value && IsPaired<KV>::value) {
        const bool is_small = unit.row->splits_keys && p.heads / p.kv_heads < 8;
        if (p.dim % 32 == 0 && !is_small) return run_unit<TileProducts, T, KV>(p, row_index, unit, index, memory, next);
    }
#endif
    run_unit<Products<T, KV>, T, KV>(p, row_index, unit, index, memory, next);
}

template <class T, class KV>
static void attend(const AttentionParams& p, int thread, float* scratch) {
    const int most_rows = unit_rows(p.heads / p.kv_heads);
    const UnitMemory memory{scratch, scratch + most_rows * p.dim, scratch + 2 * most_rows * p.dim,
                            scratch + most_rows * (2 * p.dim + KEY_BLOCK), scratch + most_rows * (2 * p.dim + KEY_BLOCK + 1),
                            scratch + most_rows * (2 * p.dim + KEY_BLOCK + 2)};
    const int num_rows = p.plan[1];
    const RowPlan* rows = reinterpret_cast<const RowPlan*>(p.plan + PLAN_HEADER);
    const PlanBound* bounds = reinterpret_cast<const PlanBound*>(rows + num_rows);
    PlanBound at = bounds[thread];
    const PlanBound end = bounds[thread + 1];
    while (at.row < num_rows && !(at.row == end.row && at.kv_head == end.kv_head && at.unit == end.unit)) {
        const PlanBound now = at;
        if (++at.unit >= rows[at.row].num_units) {
            at.unit = 0;
            if (++at.kv_head >= p.kv_heads) {
                at.kv_head = 0;
                ++at.row;
            }
        }
        const bool follows = at.row < num_rows && rows[at.row].splits_keys && rows[at.row].length > 0;
        const Unit unit = unit_of(p, rows[now.row], now.kv_head, now.unit);
        const Unit next = follows ? unit_of(p, rows[at.row], at.kv_head, at.unit) : unit;
        run_any_unit<T, KV>(p, now.row, unit, now.unit, memory, follows ? &next : nullptr);
    }
}

template <class T>
static void attend_of(const AttentionParams& p, int thread, float* scratch) {
    switch (p.kv_type) {
        case 0: return attend<T, float>(p, thread, scratch);
        case 1: return attend<T, BF16>(p, thread, scratch);
        case 3: return attend<T, I8>(p, thread, scratch);
        default: return attend<T, F16>(p, thread, scratch);
    }
}

// The units of one thread of the plan. scratch: attention_scratch(p) floats of this thread's own.
static void attention(const AttentionParams& p, int thread, float* scratch) {
    switch (p.type) {
        case 0: return attend_of<float>(p, thread, scratch);
        case 1: return attend_of<BF16>(p, thread, scratch);
        default: return attend_of<F16>(p, thread, scratch);
    }
}
