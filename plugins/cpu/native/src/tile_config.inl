// AMX's tiles: their sizes. Included inside namespace tenon::amx by linears and attention; tests/emulated_tiles.inl is another.
//
// GCC 12's _tile_loadconfig declares 8 of the 64 bytes as its input, so the rest may be optimized away; its _tile_loadd
// declares no memory at all, so stores before it may be moved behind it: hence the asm.

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {};
    uint8_t rows[16] = {};
};

static inline void load_config(const TileConfig& config) {
    asm volatile("ldtilecfg %0" ::"m"(*reinterpret_cast<const unsigned char(*)[64]>(&config)));
}

static inline void stores_are_done() {
    asm volatile("" ::: "memory");
}
