// AMX: scores of bfloat16 queries and keys, values mixed by bfloat16 weights. Included inside namespace tenon::amx after
// tile_config.inl, and by tests/tiles.cpp over tiles of its own.
//
// A tile of keys, [dim / 2, 16, 2], is AMX's B tile as it lies, 32 dims a product; a tile of values, [8, dim, 2], is one of 16
// tokens for every 16 dims. The order of a sum depends on dim and on where a token lies alone, so a row has the same bits in
// any batch.

// Of sixteen rows, 0..2: sums; queries or more sums; their last 16 dims or weights. 3..5: of the rows that are left. 6, 7: keys;
// their last 16 dims or values.
static inline void configure_attention(int rows) {
    const int rest = rows % 16 ? rows % 16 : 16;
    TileConfig config;
    for (int i = 0; i < 6; ++i) {
        config.rows[i] = static_cast<uint8_t>(i < 3 ? 16 : rest);
        config.column_bytes[i] = i % 3 == 2 ? 32 : 64;
    }
    config.rows[6] = 16;
    config.rows[7] = 8;
    config.column_bytes[6] = config.column_bytes[7] = 64;
    load_config(config);
}

// scores [rows, 16], KEY_BLOCK apart, of queries [rows, dim] and one tile of keys; dim is a multiple of 16.
static inline void score_tiles(const uint16_t* query, int rows, int dim, const uint16_t* keys, float* scores) {
    const int64_t stride = 2 * dim, whole = dim / 32 * 32;
    int r = 0;
    for (; r + 16 <= rows; r += 16, query += 16 * dim, scores += 16 * KEY_BLOCK) {
        _tile_zero(0);
        for (int64_t d = 0; d < whole; d += 32) {
            _tile_loadd(1, query + d, stride);
            _tile_loadd(6, keys + TILE * d, 64);
            _tile_dpbf16ps(0, 1, 6);
        }
        if (whole < dim) {
            _tile_loadd(2, query + whole, stride);
            _tile_loadd(7, keys + TILE * whole, 64);
            _tile_dpbf16ps(0, 2, 7);
        }
        _tile_stored(0, scores, 4 * KEY_BLOCK);
    }
    if (r == rows) return;
    _tile_zero(3);
    for (int64_t d = 0; d < whole; d += 32) {
        _tile_loadd(4, query + d, stride);
        _tile_loadd(6, keys + TILE * d, 64);
        _tile_dpbf16ps(3, 4, 6);
    }
    if (whole < dim) {
        _tile_loadd(5, query + whole, stride);
        _tile_loadd(7, keys + TILE * whole, 64);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(3, scores, 4 * KEY_BLOCK);
}

// sums [rows, 16 or 32 from d] += weights [rows, 16] * values [16, ..], in the tiles named.
#define TENON_MIX(SUMS, MORE, WEIGHTS)                       \
    _tile_loadd(WEIGHTS, weights, 4 * KEY_BLOCK);            \
    for (int d = 0; d < dim; d += 32) {                      \
        const bool both = d + 16 < dim;                      \
        _tile_loadd(SUMS, sums + d, stride);                 \
        _tile_loadd(7, values + 2 * d, stride);              \
        _tile_dpbf16ps(SUMS, WEIGHTS, 7);                    \
        if (both) {                                          \
            _tile_loadd(MORE, sums + d + 16, stride);        \
            _tile_loadd(7, values + 2 * d + 32, stride);     \
            _tile_dpbf16ps(MORE, WEIGHTS, 7);                \
        }                                                    \
        _tile_stored(SUMS, sums + d, stride);                \
        if (both) _tile_stored(MORE, sums + d + 16, stride); \
    }

// sums [rows, dim] += weights [rows, 16], 2 * KEY_BLOCK apart, * one tile of values; dim is a multiple of 16.
static inline void mix_tiles(const uint16_t* weights, int rows, int dim, const uint16_t* values, float* sums) {
    const int64_t stride = 4 * dim;
    int r = 0;
    for (; r + 16 <= rows; r += 16, weights += 32 * KEY_BLOCK, sums += 16 * dim) {
        TENON_MIX(0, 1, 2)
    }
    if (r < rows) {
        TENON_MIX(3, 4, 5)
    }
}
#undef TENON_MIX

// The first `count` tokens of a tile of values; others, which may hold anything, become zeros.
static inline void copy_values(const uint16_t* values, int count, int dim, uint16_t* to) {
    const int pairs = count / 2;
    __builtin_memcpy(to, values, sizeof(uint16_t) * 2 * dim * pairs);
    __builtin_memset(to + 2 * dim * pairs, 0, sizeof(uint16_t) * 2 * dim * (TILE / 2 - pairs));
    for (int d = 0; count % 2 && d < dim; ++d) to[2 * (dim * pairs + d)] = values[2 * (dim * pairs + d)];
}
