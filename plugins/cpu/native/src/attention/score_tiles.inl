// AMX: scores of bfloat16 queries and keys. Included inside namespace tenon::amx after tile_config.inl, and by
// tests/tiles.cpp over tiles of its own.
//
// A tile of keys, [dim / 2, 16, 2], is AMX's B tile as it lies, 32 dims a product. The order of a sum depends on dim alone,
// so a token has the same bits in any batch.

// Tiles 0..2: sums, queries, their last 16 dims of sixteen rows; 3..5: of the rows that are left; 6, 7: keys, their last 16 dims.
static inline void configure_scores(int rows) {
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
