// AMX's bfloat16 products over emulated tiles, so that they are checked where no CPU has them: sizes of tiles that do not
// fit each other, and sums against float64.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int GROUP = 16;
struct Activations {
    const uint16_t* bf16;
    int64_t columns;
};
struct TileConfig {
    uint16_t column_bytes[16] = {};
    uint8_t rows[16] = {};
};
struct Tile {
    uint8_t bytes[16][64];
};

TileConfig config;
Tile tiles[8];
int faults = 0;

void fault(const char* what, int tile) {
    if (++faults < 10) std::fprintf(stderr, "emulated tile %d: %s\n", tile, what);
}

void load_config(const TileConfig& wanted) {
    config = wanted;
    for (int i = 0; i < 8; ++i) {
        if (config.rows[i] < 1 || config.rows[i] > 16 || config.column_bytes[i] < 4 || config.column_bytes[i] > 64) fault("no such size", i);
        tiles[i] = {};
    }
}

void _tile_zero(int tile) { tiles[tile] = {}; }
void _tile_release() {}

void _tile_loadd(int tile, const void* from, int64_t stride) {
    tiles[tile] = {};
    for (int r = 0; r < config.rows[tile]; ++r)
        std::memcpy(tiles[tile].bytes[r], static_cast<const char*>(from) + r * stride, config.column_bytes[tile]);
}

void _tile_stored(int tile, void* to, int64_t stride) {
    for (int r = 0; r < config.rows[tile]; ++r)
        std::memcpy(static_cast<char*>(to) + r * stride, tiles[tile].bytes[r], config.column_bytes[tile]);
}

float bf16_at(const void* p, int64_t index) {
    uint16_t half;
    std::memcpy(&half, static_cast<const char*>(p) + 2 * index, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

void _tile_dpbf16ps(int sums, int a, int b) {
    if (config.rows[sums] != config.rows[a] || config.column_bytes[sums] != config.column_bytes[b] || config.column_bytes[a] != 4 * config.rows[b]) fault("sizes differ", sums);
    for (int r = 0; r < config.rows[a]; ++r)
        for (int k = 0; k < config.rows[b]; ++k)
            for (int n = 0; n < config.column_bytes[b] / 4; ++n) {
                float sum;
                std::memcpy(&sum, tiles[sums].bytes[r] + 4 * n, 4);
                for (int i = 0; i < 2; ++i) sum += bf16_at(tiles[a].bytes[r], 2 * k + i) * bf16_at(tiles[b].bytes[k], 2 * n + i);
                std::memcpy(tiles[sums].bytes[r] + 4 * n, &sum, 4);
            }
}

#define TENON_INLINE static inline
#include "linear/bf16_tiles.inl"

uint32_t state = 1;
uint16_t random_bf16() {  // 0.5 to 1, of either sign
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>(state >> 16 & 0x807f) | 0x3f00;
}

bool is_right(int64_t columns, int64_t tokens) {
    std::vector<uint16_t> x(static_cast<size_t>(tokens * columns)), weights(static_cast<size_t>(columns * GROUP));
    std::vector<float> out(static_cast<size_t>(tokens * GROUP));
    for (auto& value : x) value = random_bf16();
    for (auto& value : weights) value = random_bf16();
    multiply_bf16_tiles(reinterpret_cast<const uint8_t*>(weights.data()), {x.data(), columns}, tokens, out.data());
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t r = 0; r < GROUP; ++r) {
            double exact = 0;
            for (int64_t c = 0; c < columns; ++c) exact += static_cast<double>(bf16_at(x.data(), t * columns + c)) * bf16_at(weights.data(), 32 * (c / 2) + 2 * r + c % 2);
            if (std::fabs(exact - static_cast<double>(out[static_cast<size_t>(t * GROUP + r)])) <= 1e-5 * static_cast<double>(columns)) continue;
            std::fprintf(stderr, "emulated tiles: %ld columns, %ld tokens: wrong at [%ld, %ld]\n", static_cast<long>(columns), static_cast<long>(tokens), static_cast<long>(t), static_cast<long>(r));
            return false;
        }
    return true;
}

}  // namespace

bool emulated_tiles_are_right() {
    bool right = true;
    for (const int64_t columns : {2, 30, 32, 64, 334})
        for (const int64_t tokens : {4, 15, 16, 17, 32, 33, 48, 49, 63, 64, 65, 79, 80, 112, 125, 128}) right = right && is_right(columns, tokens);
    return right && faults == 0;
}
