// AMX's bfloat16 products alone, from registers or from the first cache: the measure of linears. Compiled for AMX.
#include <cstdint>

#if defined(__AMX_BF16__)
#include <immintrin.h>

namespace tenon {
#include "tile_config.inl"
}

alignas(64) static unsigned char memory[4096];

// 4 * rounds products of 16 * 16 * 32; only where AMX is.
void tile_products(bool loads, int64_t rounds) {
    tenon::TileConfig config;
    for (int i = 0; i < 8; ++i) config.rows[i] = 16, config.column_bytes[i] = 64;
    tenon::load_config(config);
    for (int64_t i = 0; i < rounds; ++i) {
        if (loads) {
            _tile_loadd(6, memory, 64);
            _tile_loadd(4, memory + 1024, 64);
        }
        _tile_dpbf16ps(0, 4, 6);
        if (loads) _tile_loadd(7, memory + 2048, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (loads) _tile_loadd(5, memory + 3072, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}
#else
void tile_products(bool, int64_t) {}
#endif
