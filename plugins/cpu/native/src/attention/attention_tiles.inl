// AMX: scores of bfloat16 queries and keys, values mixed by bfloat16 weights. Included inside namespace tenon::amx after
// tile_config.inl, and by tests/attention_tiles.cpp over tiles of its own.
//
// A tile of keys, [dim / 2, 16, 2], is AMX's B tile as it lies, 32 dims a product; two tiles of values, [16, dim, 2], are one of
// 32 tokens for every 16 dims. Rows go by sixteen. The order of a sum depends on dim and on where a token lies alone, so a row
// has the same bits in any batch. Four sums are made at once: a product waits for the one before it in the same sum.

// Tiles 0..3: sums, 4: queries or weights, 5..7: keys or values, the fourth in the tile of the first.
static inline void configure_attention() {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
        config.rows[i] = 16;
        config.column_bytes[i] = 64;
    }
    load_config(config);
}

// scores [rows, 16] of each tile of keys, side by side in rows of KEY_BLOCK, of queries [rows, dim]; dim is a multiple of 32.
// tiles: at most four.
static inline void score_tiles(const uint16_t* query, int rows, int dim, const uint16_t* const* keys, int tiles, float* scores) {
    const int64_t stride = 2 * dim;
    for (int r = 0; r < rows; r += 16, query += 16 * dim, scores += 16 * KEY_BLOCK) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int d = 0; d < dim; d += 32) {
            _tile_loadd(4, query + d, stride);
            _tile_loadd(5, keys[0] + TILE * d, 64);
            _tile_dpbf16ps(0, 4, 5);
            if (tiles > 1) {
                _tile_loadd(6, keys[1] + TILE * d, 64);
                _tile_dpbf16ps(1, 4, 6);
            }
            if (tiles > 2) {
                _tile_loadd(7, keys[2] + TILE * d, 64);
                _tile_dpbf16ps(2, 4, 7);
            }
            if (tiles > 3) {
                _tile_loadd(5, keys[3] + TILE * d, 64);
                _tile_dpbf16ps(3, 4, 5);
            }
        }
        _tile_stored(0, scores, 4 * KEY_BLOCK);
        if (tiles > 1) _tile_stored(1, scores + TILE, 4 * KEY_BLOCK);
        if (tiles > 2) _tile_stored(2, scores + 2 * TILE, 4 * KEY_BLOCK);
        if (tiles > 3) _tile_stored(3, scores + 3 * TILE, 4 * KEY_BLOCK);
    }
}

// sums [rows, dim] += weights [rows, 32 of each pair of tiles], 2 * KEY_BLOCK apart, * values; dim is a multiple of 32.
static inline void mix_tiles(const uint16_t* weights, int rows, int dim, const uint16_t* const* values, int pairs, float* sums) {
    const int64_t stride = 4 * dim;
    for (int r = 0; r < rows; r += 16, weights += 32 * KEY_BLOCK, sums += 16 * dim)
        for (int d = 0; d < dim; d += 64) {
            const bool four = d + 32 < dim;
            _tile_loadd(0, sums + d, stride);
            _tile_loadd(1, sums + d + 16, stride);
            if (four) {
                _tile_loadd(2, sums + d + 32, stride);
                _tile_loadd(3, sums + d + 48, stride);
            }
            for (int i = 0; i < pairs; ++i) {
                _tile_loadd(4, weights + 2 * TILE * i, 4 * KEY_BLOCK);
                _tile_loadd(5, values[i] + 2 * d, stride);
                _tile_dpbf16ps(0, 4, 5);
                _tile_loadd(6, values[i] + 2 * d + 32, stride);
                _tile_dpbf16ps(1, 4, 6);
                if (!four) continue;
                _tile_loadd(7, values[i] + 2 * d + 64, stride);
                _tile_dpbf16ps(2, 4, 7);
                _tile_loadd(5, values[i] + 2 * d + 96, stride);
                _tile_dpbf16ps(3, 4, 5);
            }
            _tile_stored(0, sums + d, stride);
            _tile_stored(1, sums + d + 16, stride);
            if (four) {
                _tile_stored(2, sums + d + 32, stride);
                _tile_stored(3, sums + d + 48, stride);
            }
        }
}

// The first `count` tokens of a tile of values, of which there may be none; others, which may hold anything, become zeros.
static inline void copy_values(const uint16_t* values, int count, int dim, uint16_t* to) {
    const int known = count < 0 ? 0 : count < TILE ? count : TILE, pairs = known / 2;
    if (known > 0) __builtin_memcpy(to, values, sizeof(uint16_t) * 2 * dim * pairs);
    __builtin_memset(to + 2 * dim * pairs, 0, sizeof(uint16_t) * 2 * dim * (TILE / 2 - pairs));
    for (int d = 0; known % 2 && d < dim; ++d) to[2 * (dim * pairs + d)] = values[2 * (dim * pairs + d)];
}
