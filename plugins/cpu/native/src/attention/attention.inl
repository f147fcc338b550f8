// Paged attention: one loop nest for decode and prefill, flash-style (Dao 2023, arXiv 2307.08691).
//
//     cache [blocks, kv heads, 2, block_size * dim], tiles of TILE = 16 tokens:
//     keys    tile [dim, 16]        values  tile [16, dim]           float32, float16
//             tile [dim/2, 16, 2]           tile [8, dim, 2]         bfloat16: two of what is summed lie together
//
// A unit is (row, KV head, queries, keys): the heads of a group are rows of one small product, so K and V are read once
// a group. Decode rows are split into parts by their own length alone, so a token's result never depends on the batch;
// the last part to finish merges them all in order. Unwritten slots may hold NaN: keys are masked, values not read.
//
// A decode row reads each tile once, from memory, in blocks that lie anywhere: while keys are scored their values are asked
// for, and while values are summed the keys that follow, of this unit or of the next. That is what decode waits for.

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

static inline int least(int a, int b) { return a < b ? a : b; }
static inline int most(int a, int b) { return a > b ? a : b; }

// scores [R, 16] of R queries and one tile of keys
template <class KV, int R>
static inline void score_tile(const float* query, int dim, const KV* keys, float* scores) {
    Vec sum[R][TILE_VECS];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < TILE_VECS; ++v) sum[r][v] = vzero();
    if constexpr (IsPaired<KV>::value) {
        for (int d = 0; d < dim; d += 2) {
            for (int v = 0; v < TILE_VECS; ++v) {
                Vec even, odd;
                vload_pairs(keys + d * TILE + v * 2 * W, even, odd);
                for (int r = 0; r < R; ++r) {
                    sum[r][v] = vfma(vset(query[r * dim + d]), even, sum[r][v]);
                    sum[r][v] = vfma(vset(query[r * dim + d + 1]), odd, sum[r][v]);
                }
            }
        }
    } else {
        for (int d = 0; d < dim; ++d) {
            Vec key[TILE_VECS];
            for (int v = 0; v < TILE_VECS; ++v) key[v] = vload(keys + d * TILE + v * W);
            for (int r = 0; r < R; ++r) {
                const Vec q = vset(query[r * dim + d]);
                for (int v = 0; v < TILE_VECS; ++v) sum[r][v] = vfma(q, key[v], sum[r][v]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < TILE_VECS; ++v) vstore(scores + r * KEY_BLOCK + v * W, sum[r][v]);
}

template <class KV>
static void score_rows(const float* query, int rows, int dim, const KV* keys, float* scores) {
    for (; rows >= MOST_ROWS; rows -= MOST_ROWS, query += MOST_ROWS * dim, scores += MOST_ROWS * KEY_BLOCK)
        score_tile<KV, MOST_ROWS>(query, dim, keys, scores);
    switch (rows) {
        case 1: return score_tile<KV, 1>(query, dim, keys, scores);
        case 2: return score_tile<KV, 2>(query, dim, keys, scores);
        case 3: return score_tile<KV, 3>(query, dim, keys, scores);
        case 4: return score_tile<KV, 4>(query, dim, keys, scores);
        case 5: return score_tile<KV, 5>(query, dim, keys, scores);
        case 0: return;
        default: break;
    }
    if constexpr (MOST_ROWS > 6) {
        score_tile<KV, 6>(query, dim, keys, scores);
        score_rows<KV>(query + 6 * dim, rows - 6, dim, keys, scores + 6 * KEY_BLOCK);
    }
}

// sums [R, C vectors from d] += weights [R, count] * values [count, dim]
template <class KV, int R, int C>
static inline void mix_columns(const float* weights, const KV* values, int count, int dim, int d, float* sums) {
    Vec sum[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = vload(sums + r * dim + d + c * W);
    if constexpr (IsPaired<KV>::value) {
        for (int t = 0; t < count; t += 2) {
            const bool whole = t + 1 < count;
            for (int c = 0; c < C; ++c) {
                Vec even, odd;
                vload_pairs(values + t * dim + (d + c * W) * 2, even, odd);
                for (int r = 0; r < R; ++r) {
                    sum[r][c] = vfma(vset(weights[r * KEY_BLOCK + t]), even, sum[r][c]);
                    if (whole) sum[r][c] = vfma(vset(weights[r * KEY_BLOCK + t + 1]), odd, sum[r][c]);
                }
            }
        }
    } else {
        for (int t = 0; t < count; ++t) {
            Vec value[C];
            for (int c = 0; c < C; ++c) value[c] = vload(values + t * dim + d + c * W);
            for (int r = 0; r < R; ++r) {
                const Vec weight = vset(weights[r * KEY_BLOCK + t]);
                for (int c = 0; c < C; ++c) sum[r][c] = vfma(weight, value[c], sum[r][c]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) vstore(sums + r * dim + d + c * W, sum[r][c]);
}

template <class KV, int R, int C>
static inline void mix_tile(const float* weights, const KV* values, int count, int dim, float* sums) {
    int d = 0;
    for (; d + C * W <= dim; d += C * W) mix_columns<KV, R, C>(weights, values, count, dim, d, sums);
    if constexpr (C > 1) {
        for (; d < dim; d += W) mix_columns<KV, R, 1>(weights, values, count, dim, d, sums);
    }
}

template <class KV>
static void mix_rows(const float* weights, int rows, const KV* values, int count, int dim, float* sums) {
    for (; rows >= 6; rows -= 6, weights += 6 * KEY_BLOCK, sums += 6 * dim)
        mix_tile<KV, 6, 2>(weights, values, count, dim, sums);
    switch (rows) {
        case 1: return mix_tile<KV, 1, 8>(weights, values, count, dim, sums);
        case 2: return mix_tile<KV, 2, 4>(weights, values, count, dim, sums);
        case 3: return mix_tile<KV, 3, 4>(weights, values, count, dim, sums);
        case 4: return mix_tile<KV, 4, 2>(weights, values, count, dim, sums);
        case 5: return mix_tile<KV, 5, 2>(weights, values, count, dim, sums);
        default: return;
    }
}

// A unit's two products, with one tile of the cache at a time: queries are taken row by row, scored with keys, and once the
// scores of a key block are weights, values are mixed by them.
template <class T, class KV>
struct Products {
    static void take(const T* query, int dim, float scale, float* rows, int r) {
        const Vec by = vset(scale);
        for (int d = 0; d < dim; d += W) vstore(rows + r * dim + d, vload(query + d) * by);
    }
    static void begin(int) {}
    static void score(const float* query, int rows, int dim, float, const KV* keys, float* scores) {
        score_rows<KV>(query, rows, dim, keys, scores);
    }
    static void are_weights(float*, int, int) {}
    static void mix(const float* scores, int first, int rows, const KV* values, int count, int dim, float*, float* sums) {
        mix_rows<KV>(scores + first, rows, values, count, dim, sums);
    }
    static void end() {}
};

#if TENON_LEVEL_NUMBER == 4
template <>
struct Products<BF16, BF16> {  // by AMX: queries stay as they are, scores are scaled, weights are rounded to bfloat16
    static void take(const BF16* query, int dim, float, float* rows, int r) {
        __builtin_memcpy(reinterpret_cast<BF16*>(rows) + r * dim, query, sizeof(BF16) * dim);
    }
    static void begin(int rows) {
        stores_are_done();
        configure_attention(rows);
    }
    static void score(const float* query, int rows, int dim, float scale, const BF16* keys, float* scores) {
        const Vec by = vset(scale);
        score_tiles(reinterpret_cast<const uint16_t*>(query), rows, dim, &keys->bits, scores);
        for (int r = 0; r < rows; ++r, scores += KEY_BLOCK)
            for (int i = 0; i < TILE; i += W) vstore(scores + i, vload(scores + i) * by);
    }
    static void are_weights(float* scores, int rows, int width) {  // a row's halves lie where its floats began
        for (int r = 0; r < rows; ++r, scores += KEY_BLOCK)
            for (int i = 0; i < width; i += W) vstore(reinterpret_cast<BF16*>(scores) + i, vload(scores + i));
        stores_are_done();
    }
    static void mix(const float* scores, int first, int rows, const BF16* values, int count, int dim, float* tail, float* sums) {
        const uint16_t* from = &values->bits;
        if (count < TILE) {
            copy_values(from, count, dim, reinterpret_cast<uint16_t*>(tail));
            from = reinterpret_cast<const uint16_t*>(tail);
            stores_are_done();
        }
        mix_tiles(reinterpret_cast<const uint16_t*>(scores) + first, rows, dim, from, sums);
    }
    static void end() { _tile_release(); }
};
#endif

// A thread's memory: queries and sums [QUERY_ROWS + group, dim], scores [.., KEY_BLOCK], top and total [..], a tile of values.
struct UnitMemory {
    float* query;
    float* sums;
    float* scores;
    float* top;
    float* total;
    float* tail;
};

struct Unit {
    const RowPlan* row;
    int kv_head;
    int first_query, num_queries;  // of the row
    int first_key, end_key;
};

// The tile is needed soon.
template <class KV>
static inline void ask_for(const KV* tile, int dim) {
    const char* at = reinterpret_cast<const char*>(tile);
    for (int i = 0; i < TILE * dim * static_cast<int>(sizeof(KV)); i += 64) __builtin_prefetch(at + i);
}

template <class KV>
static const KV* tile_at(const AttentionParams& p, const Unit& unit, int key, bool values) {
    const int32_t block = p.block_table[unit.row->table_row * p.table_stride + key / p.block_size];
    const int64_t line = static_cast<int64_t>(p.block_size) * p.dim;
    const KV* base = static_cast<const KV*>(p.cache) + block * p.cache_stride + (unit.kv_head * 2 + values) * line;
    return base + (key % p.block_size) / TILE * TILE * p.dim;
}

// One row's scores of a key block become weights; its sums are rescaled.
static inline void soften(const AttentionParams& p, float* scores, int from, int to, int width, float* sums, float& top, float& total) {
    if (p.soft_cap > 0) {
        const Vec cap = vset(p.soft_cap), share = vset(1.0f / p.soft_cap);
        for (int i = 0; i < width; i += W) vstore(scores + i, cap * vtanh(vload(scores + i) * share));
    }
    for (int i = 0; i < from; ++i) scores[i] = NEGATIVE_INFINITY;
    for (int i = to; i < width; ++i) scores[i] = NEGATIVE_INFINITY;
    Vec best = vload(scores);
    for (int i = W; i < width; i += W) best = vmax(best, vload(scores + i));
    const float found = vtop(best), now = found > top ? found : top;
    if (now == NEGATIVE_INFINITY) {  // nothing visible so far
        for (int i = 0; i < width; i += W) vstore(scores + i, vzero());
        return;
    }
    const Vec shift = vset(now);
    Vec sum = vzero();
    for (int i = 0; i < width; i += W) {
        const Vec weight = vexp(vload(scores + i) - shift);
        vstore(scores + i, weight);
        sum = sum + weight;
    }
    if (now != top) {
        const Vec keep = vexp(vset(top - now));
        float kept[W];
        vstore(kept, keep);
        total *= kept[0];
        for (int d = 0; d < p.dim; d += W) vstore(sums + d, vload(sums + d) * keep);
        top = now;
    }
    total += vsum(sum);
}

// next: the unit after this one, or null.
template <class T, class KV>
static void compute_unit(const AttentionParams& p, const Unit& unit, const UnitMemory& memory, const Unit* next) {
    const int group = p.heads / p.kv_heads, dim = p.dim, rows = unit.num_queries * group;
    const int first_position = unit.row->length - unit.row->num_queries + unit.first_query;
    const bool asks = unit.row->splits_keys != 0;
    for (int r = 0; r < rows; ++r) {
        const int64_t token = unit.row->query_start + unit.first_query + r / group;
        const T* query = static_cast<const T*>(p.query) + (token * p.heads + unit.kv_head * group + r % group) * dim;
        Products<T, KV>::take(query, dim, p.scale, memory.query, r);
        for (int d = 0; d < dim; d += W) vstore(memory.sums + r * dim + d, vzero());
        memory.top[r] = NEGATIVE_INFINITY;
        memory.total[r] = 0;
    }
    Products<T, KV>::begin(rows);
    for (int key = unit.first_key; key < unit.end_key; key += KEY_BLOCK) {
        const int count = least(KEY_BLOCK, unit.end_key - key), width = (count + TILE - 1) / TILE * TILE;
        for (int t = 0; t < width; t += TILE) {
            if (asks) ask_for(tile_at<KV>(p, unit, key + t, true), dim);
            Products<T, KV>::score(memory.query, rows, dim, p.scale, tile_at<KV>(p, unit, key + t, false), memory.scores + t);
        }
        for (int r = 0; r < rows; ++r) {
            const int position = first_position + r / group;
            const int to = p.causal ? least(count, position + 1 - key) : count;
            const int from = p.window ? most(0, position + 1 - p.window - key) : 0;
            soften(p, memory.scores + r * KEY_BLOCK, least(from, width), most(to, 0), width, memory.sums + r * dim, memory.top[r], memory.total[r]);
        }
        Products<T, KV>::are_weights(memory.scores, rows, width);
        const bool is_last = key + KEY_BLOCK >= unit.end_key;
        const Unit* then = !asks ? nullptr : is_last ? next : &unit;
        const int then_key = then == nullptr ? 0 : is_last ? then->first_key : key + KEY_BLOCK;
        for (int t = 0; t < width; t += TILE) {
            if (then != nullptr && then_key + t < then->end_key) ask_for(tile_at<KV>(p, *then, then_key + t, false), dim);
            Products<T, KV>::mix(memory.scores, t, rows, tile_at<KV>(p, unit, key + t, true), least(TILE, count - t), dim, memory.tail, memory.sums);
        }
    }
    Products<T, KV>::end();
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

template <class T, class KV>
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
    compute_unit<T, KV>(p, unit, memory, next);
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

template <class T, class KV>
static void attend(const AttentionParams& p, int thread, float* scratch) {
    const int group = p.heads / p.kv_heads, most_rows = group > QUERY_ROWS ? group : QUERY_ROWS;
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
        run_unit<T, KV>(p, now.row, unit, now.unit, memory, follows ? &next : nullptr);
    }
}

template <class T>
static void attend_of(const AttentionParams& p, int thread, float* scratch) {
    switch (p.kv_type) {
        case 0: return attend<T, float>(p, thread, scratch);
        case 1: return attend<T, BF16>(p, thread, scratch);
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
