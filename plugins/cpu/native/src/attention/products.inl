// The two products of attention, scores of queries and keys and values mixed by weights, with vectors or with tiles. Included
// by attention.inl, whose cache's tiles they read.

// scores [R, N * 16] of R queries and N tiles of keys side by side: a sum waits for the one before it.
template <class KV, int R, int N, bool ASKS>
static inline void score_tiles_and(const float* query, int dim, const KV* const* tiles, float* scores, const Ask ask) {
    constexpr int READ = N * TILE * static_cast<int>(sizeof(KV));  // bytes of a dim
    Vec sum[R][N * TILE_VECS];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < N * TILE_VECS; ++v) sum[r][v] = vzero();
    if constexpr (IsPaired<KV>::value) {
        for (int d = 0; d < dim; d += 2) {
            if constexpr (ASKS) ask.over<2 * READ>(d * READ);
            for (int v = 0; v < N * TILE_VECS; ++v) {
                Vec even, odd;
                vload_pairs(tiles[v / TILE_VECS] + d * TILE + v % TILE_VECS * 2 * W, even, odd);
                for (int r = 0; r < R; ++r) {
                    sum[r][v] = vfma(vset(query[r * dim + d]), even, sum[r][v]);
                    sum[r][v] = vfma(vset(query[r * dim + d + 1]), odd, sum[r][v]);
                }
            }
        }
    } else {
        for (int d = 0; d < dim; ++d) {
            if constexpr (ASKS) ask.over<READ>(d * READ);
            Vec key[N * TILE_VECS];
            for (int v = 0; v < N * TILE_VECS; ++v) key[v] = vload(tiles[v / TILE_VECS] + d * TILE + v % TILE_VECS * W);
            for (int r = 0; r < R; ++r) {
                const Vec q = vset(query[r * dim + d]);
                for (int v = 0; v < N * TILE_VECS; ++v) sum[r][v] = vfma(q, key[v], sum[r][v]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < N * TILE_VECS; ++v) {
            if constexpr (IsScaled<KV>::value) sum[r][v] = sum[r][v] * vload(scales_of(tiles[v / TILE_VECS], dim) + v % TILE_VECS * W);
            vstore(scores + r * KEY_BLOCK + v * W, sum[r][v]);
        }
}

template <class KV, int R, int N>
static inline void score_tiles_of(const float* query, int dim, const KV* const* tiles, float* scores, const Ask* ask) {
    if constexpr (R <= 6) {
        if (ask != nullptr) return score_tiles_and<KV, R, N, true>(query, dim, tiles, scores, *ask);
    } else if (ask != nullptr) {
        ask->all();
    }
    score_tiles_and<KV, R, N, false>(query, dim, tiles, scores, {});
}

// ask: what the first of the rows ask for meanwhile, or null.
template <class KV>
static void score_rows(const float* query, int rows, int dim, const KV* const* keys, float* scores, const Ask* ask) {
    for (; rows >= MOST_ROWS; rows -= MOST_ROWS, query += MOST_ROWS * dim, scores += MOST_ROWS * KEY_BLOCK, ask = nullptr)
        score_tiles_of<KV, MOST_ROWS, 1>(query, dim, keys, scores, ask);
    switch (rows) {
        case 1: return score_tiles_of<KV, 1, 1>(query, dim, keys, scores, ask);
        case 2: return score_tiles_of<KV, 2, 1>(query, dim, keys, scores, ask);
        case 3: return score_tiles_of<KV, 3, 1>(query, dim, keys, scores, ask);
        case 4: return score_tiles_of<KV, 4, 1>(query, dim, keys, scores, ask);
        case 5: return score_tiles_of<KV, 5, 1>(query, dim, keys, scores, ask);
        case 0: return;
        default: break;
    }
    if constexpr (MOST_ROWS > 6) {
        score_tiles_of<KV, 6, 1>(query, dim, keys, scores, ask);
        score_rows<KV>(query + 6 * dim, rows - 6, dim, keys, scores + 6 * KEY_BLOCK, nullptr);
    }
}

// Tiles of keys, one or two; few rows take two at once, where there are registers for it.
template <class KV>
static void score_two(const float* query, int rows, int dim, const KV* const* keys, int t, float* scores, const Soon* soon) {
    const bool are_two = keys[t + 1] != nullptr;
    if (TILE_VECS == 1 && rows <= 3 && are_two) {
        const Ask both = soon != nullptr ? soon->share(t, 2) : Ask{}, *ask = soon != nullptr ? &both : nullptr;
        switch (rows) {
            case 1: return score_tiles_of<KV, 1, 2>(query, dim, keys + t, scores + t * TILE, ask);
            case 2: return score_tiles_of<KV, 2, 2>(query, dim, keys + t, scores + t * TILE, ask);
            default: return score_tiles_of<KV, 3, 2>(query, dim, keys + t, scores + t * TILE, ask);
        }
    }
    for (int i = t; i < t + 1 + are_two; ++i) {
        const Ask one = soon != nullptr ? soon->share(i, 1) : Ask{};
        score_rows<KV>(query, rows, dim, keys + i, scores + i * TILE, soon != nullptr ? &one : nullptr);
    }
}

// sums [R, C vectors from d] += weights [R, count] * values [count, dim]; a whole tile, where it ASKS.
template <class KV, int R, int C, bool ASKS>
static inline void mix_columns(const float* weights, const KV* values, int count, int dim, int d, float* sums, const Ask ask) {
    constexpr int READ = C * W * static_cast<int>(sizeof(KV));  // bytes of a token
    const int before = d * TILE * static_cast<int>(sizeof(KV));  // of the columns before these
    Vec sum[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = vload(sums + r * dim + d + c * W);
    if constexpr (IsPaired<KV>::value) {
        for (int t = 0; t < count; t += 2) {
            if constexpr (ASKS) ask.over<2 * READ>(before + t * READ);
            const bool whole = ASKS || t + 1 < count;
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
            if constexpr (ASKS) ask.over<READ>(before + t * READ);
            Vec value[C];
            for (int c = 0; c < C; ++c) value[c] = vload(values + t * dim + d + c * W);
            for (int r = 0; r < R; ++r) {
                const Vec weight = vset(weights[r * KEY_BLOCK + t]);
                for (int c = 0; c < C; ++c) sum[r][c] = vfma(weight, value[c], sum[r][c]);
            }
        }
    }
#pragma GCC unroll 8  // else sums go to memory
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) vstore(sums + r * dim + d + c * W, sum[r][c]);
}

template <class KV, int R, int C, bool ASKS>
static inline void mix_tile_and(const float* weights, const KV* values, int count, int dim, float* sums, const Ask& ask) {
    int d = 0;
    for (; d + C * W <= dim; d += C * W) mix_columns<KV, R, C, ASKS>(weights, values, count, dim, d, sums, ask);
    if constexpr (C > 1) {
        for (; d < dim; d += W) mix_columns<KV, R, 1, ASKS>(weights, values, count, dim, d, sums, ask);
    }
}

// Part of a tile asks at once.
template <class KV, int R, int C>
static inline void mix_tile(const float* weights, const KV* values, int count, int dim, float* sums, const Ask* ask) {
    if (ask != nullptr && count == TILE) return mix_tile_and<KV, R, C, true>(weights, values, count, dim, sums, *ask);
    if (ask != nullptr) ask->all();
    mix_tile_and<KV, R, C, false>(weights, values, count, dim, sums, {});
}

template <class KV>
static void mix_rows(const float* weights, int rows, const KV* values, int count, int dim, float* sums, const Ask* ask) {
    for (; rows >= 6; rows -= 6, weights += 6 * KEY_BLOCK, sums += 6 * dim, ask = nullptr)
        mix_tile<KV, 6, 2>(weights, values, count, dim, sums, ask);
    switch (rows) {
        case 1: return mix_tile<KV, 1, 8>(weights, values, count, dim, sums, ask);
        case 2: return mix_tile<KV, 2, 4>(weights, values, count, dim, sums, ask);
        case 3: return mix_tile<KV, 3, 4>(weights, values, count, dim, sums, ask);
        case 4: return mix_tile<KV, 4, 2>(weights, values, count, dim, sums, ask);
        case 5: return mix_tile<KV, 5, 2>(weights, values, count, dim, sums, ask);
        default: return;
    }
}

// A thread's memory: queries and sums [rows, dim], scores [rows, KEY_BLOCK], top and total [rows], for QUERY_ROWS or a group's
// rows, in sixteens; a key block of values.
struct UnitMemory {
    float* query;
    float* sums;
    float* scores;
    float* top;
    float* total;
    float* tail;
};

// A unit's two products: queries are taken row by row, scored with the keys of a block, and once the scores are weights,
// values are mixed by them. `soon`: what is asked for meanwhile, or null. Of KV's type, in float32.
template <class T, class KV>
struct Products {
    using Weight = float;
    static constexpr int WIDTH = TILE;  // mixes so many keys at a time
    static constexpr bool SCALES_QUERIES = true;
    static void take(const T* query, int dim, float scale, const UnitMemory& memory, int r) {
        const Vec by = vset(scale);
        for (int d = 0; d < dim; d += W) vstore(memory.query + r * dim + d, vload(query + d) * by);
    }
    static void begin(const UnitMemory&, int, int) {}
    static void score(const UnitMemory& memory, int rows, int dim, const Tiles<KV>& keys, const Soon* soon) {
        int t = 0;
        for (; t < BLOCK_TILES && keys[t] != nullptr; t += 2) score_two<KV>(memory.query, rows, dim, keys, t, memory.scores, soon);
        if (soon != nullptr) soon->all_from(t - (t > 0 && keys[t - 1] == nullptr));
    }
    static void mix(const UnitMemory& memory, int rows, int dim, const Tiles<KV>& values, int count, const Soon* soon) {
        int t = 0;
        for (; t * TILE < count; ++t) {
            const Ask share = soon != nullptr ? soon->share(t, 1) : Ask{};
            mix_rows<KV>(memory.scores + t * TILE, rows, values[t], least(TILE, count - t * TILE), dim, memory.sums, soon != nullptr ? &share : nullptr);
        }
        if (soon != nullptr) soon->all_from(t);
    }
    static void end() {}
};

#ifdef TENON_TILES
// By AMX, sixteen rows at a time: queries stay as they are, scores are scaled, weights are rounded to bfloat16.
struct TileProducts {
    using Weight = BF16;
    static constexpr int WIDTH = 2 * TILE;
    static constexpr bool SCALES_QUERIES = false;
    static void take(const BF16* query, int dim, float, const UnitMemory& memory, int r) {
        __builtin_memcpy(reinterpret_cast<BF16*>(memory.query) + r * dim, query, sizeof(BF16) * dim);
    }
    static void begin(const UnitMemory& memory, int rows, int dim) {  // rows that are not there are zeros
        const int all = (rows + 15) / 16 * 16;
        __builtin_memset(reinterpret_cast<BF16*>(memory.query) + rows * dim, 0, sizeof(BF16) * (all - rows) * dim);
        __builtin_memset(memory.sums + rows * dim, 0, sizeof(float) * (all - rows) * dim);
        configure_attention();
    }
    static void score(const UnitMemory& memory, int rows, int dim, const Tiles<BF16>& keys, const Soon* soon) {
        if (soon != nullptr) soon->all_from(0);
        const uint16_t* at[BLOCK_TILES];
        int count = 0;
        for (; count < BLOCK_TILES && keys[count] != nullptr; ++count) at[count] = &keys[count]->bits;
        stores_are_done();
        score_tiles(reinterpret_cast<const uint16_t*>(memory.query), rows, dim, at, count, memory.scores);
    }
    // Values go by pairs of tiles: one after the other, where they lie so and are full, else copied.
    static void mix(const UnitMemory& memory, int rows, int dim, const Tiles<BF16>& values, int count, const Soon* soon) {
        if (soon != nullptr) soon->all_from(0);
        const uint16_t* pairs[BLOCK_TILES / 2];
        for (int t = 0; t * TILE < count; t += 2) {
            const bool is_whole = count - t * TILE >= 2 * TILE && values[t + 1] == values[t] + TILE * dim;
            uint16_t* copy = reinterpret_cast<uint16_t*>(memory.tail) + t * TILE * dim;
            if (!is_whole)
                for (int i = 0; i < 2; ++i) copy_values(reinterpret_cast<const uint16_t*>(values[t + i]), count - (t + i) * TILE, dim, copy + i * TILE * dim);
            pairs[t / 2] = is_whole ? &values[t]->bits : copy;
        }
        stores_are_done();
        mix_tiles(reinterpret_cast<const uint16_t*>(memory.scores), rows, dim, pairs, (count + 2 * TILE - 1) / (2 * TILE), memory.sums);
    }
    static void end() { _tile_release(); }
};
#endif
