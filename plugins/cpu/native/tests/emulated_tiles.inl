// AMX's tiles in software, which see that sizes fit each other, and random bfloat16. Included inside a namespace, after
// <cstdint>, <cstdio> and <cstring>.

struct TileConfig {
    uint16_t column_bytes[16] = {};
    uint8_t rows[16] = {};
};
struct Tile {
    uint8_t bytes[16][64];
};

static TileConfig config;
static Tile tiles[8];
static int faults = 0;

static void fault(const char* what, int tile) {
    if (++faults < 10) std::fprintf(stderr, "emulated tile %d: %s\n", tile, what);
}

static void load_config(const TileConfig& wanted) {
    config = wanted;
    for (int i = 0; i < 8; ++i) {
        const bool is_unused = config.rows[i] == 0 && config.column_bytes[i] == 0;
        if (!is_unused && (config.rows[i] < 1 || config.rows[i] > 16 || config.column_bytes[i] < 4 || config.column_bytes[i] > 64)) fault("no such size", i);
        tiles[i] = {};
    }
}

static void _tile_zero(int tile) { tiles[tile] = {}; }
static void _tile_release() {}
static void stores_are_done() {}

static void _tile_loadd(int tile, const void* from, int64_t stride) {
    if (config.rows[tile] == 0) fault("not configured", tile);
    tiles[tile] = {};
    for (int r = 0; r < config.rows[tile]; ++r)
        std::memcpy(tiles[tile].bytes[r], static_cast<const char*>(from) + r * stride, config.column_bytes[tile]);
}

[[maybe_unused]] static void _tile_stream_loadd(int tile, const void* from, int64_t stride) { _tile_loadd(tile, from, stride); }

static void _tile_stored(int tile, void* to, int64_t stride) {
    for (int r = 0; r < config.rows[tile]; ++r)
        std::memcpy(static_cast<char*>(to) + r * stride, tiles[tile].bytes[r], config.column_bytes[tile]);
}

static float bf16_at(const void* p, int64_t index) {
    uint16_t half;
    std::memcpy(&half, static_cast<const char*>(p) + 2 * index, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static void check_sizes(int sums, int a, int b) {
    if (config.rows[sums] != config.rows[a] || config.column_bytes[sums] != config.column_bytes[b] || config.column_bytes[a] != 4 * config.rows[b]) fault("sizes differ", sums);
}

[[maybe_unused]] static void _tile_dpbssd(int sums, int a, int b) {
    check_sizes(sums, a, b);
    for (int r = 0; r < config.rows[a]; ++r)
        for (int n = 0; n < config.column_bytes[b] / 4; ++n) {
            int32_t sum;
            std::memcpy(&sum, tiles[sums].bytes[r] + 4 * n, 4);
            for (int k = 0; k < config.column_bytes[a]; ++k)
                sum += static_cast<int8_t>(tiles[a].bytes[r][k]) * static_cast<int8_t>(tiles[b].bytes[k / 4][4 * n + k % 4]);
            std::memcpy(tiles[sums].bytes[r] + 4 * n, &sum, 4);
        }
}

static void _tile_dpbf16ps(int sums, int a, int b) {
    check_sizes(sums, a, b);
    for (int r = 0; r < config.rows[a]; ++r)
        for (int k = 0; k < config.rows[b]; ++k)
            for (int n = 0; n < config.column_bytes[b] / 4; ++n) {
                float sum;
                std::memcpy(&sum, tiles[sums].bytes[r] + 4 * n, 4);
                for (int i = 0; i < 2; ++i) sum += bf16_at(tiles[a].bytes[r], 2 * k + i) * bf16_at(tiles[b].bytes[k], 2 * n + i);
                std::memcpy(tiles[sums].bytes[r] + 4 * n, &sum, 4);
            }
}

static uint32_t state = 1;
static uint16_t random_bf16() {  // 0.5 to 1, of either sign
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>(state >> 16 & 0x807f) | 0x3f00;
}
