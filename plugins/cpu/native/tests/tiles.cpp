// AMX's products over emulated tiles and portable vectors, so that they are checked where no CPU has them: sizes of tiles that
// do not fit each other, bfloat16 sums against float64, quantized ones against the bits of the portable kernels.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define TENON_LEVEL emulated
#define TENON_LEVEL_NUMBER 0
#include "level.h"
#include "linear/kernels.h"
#include "step/params.h"
#include "tenon_cpu.h"

namespace tenon {
namespace emulated {

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

static void _tile_dpbssd(int sums, int a, int b) {
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

#include "linear/bytes.inl"
#include "linear/blocks.inl"
#include "linear/pairs.inl"
#include "linear/take.inl"
#include "linear/fine.inl"
#include "linear/tiles.inl"
#include "linear/bf16_tiles.inl"
#include "attention/attention_tiles.inl"

static uint32_t state = 1;
static uint16_t random_bf16() {  // 0.5 to 1, of either sign
    state = state * 1664525u + 1013904223u;
    return static_cast<uint16_t>(state >> 16 & 0x807f) | 0x3f00;
}

// `count` groups, in pairs or, up to sixteen tokens, all at once.
static bool is_right(int64_t columns, int64_t tokens, int count) {
    std::vector<uint16_t> x(static_cast<size_t>(tokens * columns)), weights[SEVERAL];
    std::vector<float> out[SEVERAL];
    const uint8_t* groups[SEVERAL];
    float* outs[SEVERAL];
    for (auto& value : x) value = random_bf16();
    for (int g = 0; g < count; ++g) {
        weights[g].resize(static_cast<size_t>(columns * GROUP));
        out[g].resize(static_cast<size_t>(tokens * GROUP));
        for (auto& value : weights[g]) value = random_bf16();
        groups[g] = reinterpret_cast<const uint8_t*>(weights[g].data());
        outs[g] = out[g].data();
    }
    Activations all{};
    all.bf16 = x.data();
    all.columns = columns;
    if (tokens <= 16 && (count > 2 || columns % 64 != 0)) multiply_several(groups, count, all, tokens, outs);
    else if (count == 2) multiply_pair(groups[0], groups[1], all, tokens, outs[0], outs[1]);
    else
        for (int g = 0; g < count; ++g) multiply_bf16_tiles(groups[g], all, tokens, outs[g]);
    for (int g = 0; g < count; ++g)
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t r = 0; r < GROUP; ++r) {
                double exact = 0;
                for (int64_t c = 0; c < columns; ++c) exact += static_cast<double>(bf16_at(x.data(), t * columns + c)) * bf16_at(weights[g].data(), 32 * (c / 2) + 2 * r + c % 2);
                if (std::fabs(exact - static_cast<double>(out[g][static_cast<size_t>(t * GROUP + r)])) <= 1e-5 * static_cast<double>(columns)) continue;
                std::fprintf(stderr, "emulated tiles: %ld columns, %ld tokens, %d groups: wrong at [%ld, %ld] of group %d\n", static_cast<long>(columns), static_cast<long>(tokens), count, static_cast<long>(t), static_cast<long>(r), g);
                return false;
            }
    return true;
}

// Queries [rows, dim], in sixteens, and tiles of keys, [dim / 2, 16, 2], one of whose keys nobody has written.
static bool are_scores_right(int rows, int dim, int tiles) {
    std::vector<uint16_t> query(static_cast<size_t>(rows * dim)), keys(static_cast<size_t>(tiles * TILE * dim));
    std::vector<float> scores(static_cast<size_t>(rows * KEY_BLOCK), 7.0f);
    const uint16_t* at[KEY_BLOCK / TILE];
    for (int t = 0; t < tiles; ++t) at[t] = keys.data() + t * TILE * dim;
    for (auto& value : query) value = random_bf16();
    for (auto& value : keys) value = random_bf16();
    for (int d = 0; d < dim; ++d) keys[static_cast<size_t>(d / 2 * 32 + 2 * 5 + d % 2)] = 0x7fc0;
    configure_attention();
    score_tiles(query.data(), rows, dim, at, tiles, scores.data());
    for (int r = 0; r < rows; ++r)
        for (int t = 0; t < tiles * TILE; ++t) {
            double exact = 0;
            for (int d = 0; d < dim; ++d) exact += static_cast<double>(bf16_at(query.data(), r * dim + d)) * bf16_at(at[t / TILE], d / 2 * 32 + 2 * (t % TILE) + d % 2);
            const float found = scores[static_cast<size_t>(r * KEY_BLOCK + t)];
            if (t == 5 ? found != found : std::fabs(exact - static_cast<double>(found)) <= 1e-5 * dim) continue;
            std::fprintf(stderr, "emulated tiles: %d queries, %d dims, %d tiles: score [%d, %d] is %g\n", rows, dim, tiles, r, t, static_cast<double>(found));
            return false;
        }
    return true;
}

// Weights [rows, tokens] and values, [8, dim, 2] a tile, whose last tokens nobody has written, are added to sums.
static bool are_mixtures_right(int rows, int dim, int tokens) {
    const int pairs = (tokens + 2 * TILE - 1) / (2 * TILE);
    std::vector<uint16_t> weights(static_cast<size_t>(rows * 2 * KEY_BLOCK)), values(static_cast<size_t>(KEY_BLOCK * dim), 0x7fc0), kept = values;
    std::vector<float> sums(static_cast<size_t>(rows * dim), 7.0f);
    const uint16_t* at[KEY_BLOCK / TILE / 2];
    for (auto& value : weights) value = random_bf16();
    for (int t = 0; t < tokens; ++t)
        for (int d = 0; d < dim; ++d) values[static_cast<size_t>(2 * (t / 2 * dim + d) + t % 2)] = random_bf16();
    for (int t = 0; t < 2 * pairs; ++t) copy_values(values.data() + t * TILE * dim, tokens - t * TILE, dim, kept.data() + t * TILE * dim);
    for (int i = 0; i < pairs; ++i) at[i] = kept.data() + 2 * i * TILE * dim;
    configure_attention();
    mix_tiles(weights.data(), rows, dim, at, pairs, sums.data());
    for (int r = 0; r < rows; ++r)
        for (int d = 0; d < dim; ++d) {
            double exact = 7;
            for (int t = 0; t < tokens; ++t) exact += static_cast<double>(bf16_at(weights.data(), r * 2 * KEY_BLOCK + t)) * bf16_at(values.data(), 2 * (t / 2 * dim + d) + t % 2);
            const float found = sums[static_cast<size_t>(r * dim + d)];
            if (std::fabs(exact - static_cast<double>(found)) <= 1e-5 * tokens) continue;
            std::fprintf(stderr, "emulated tiles: %d rows, %d dims, %d tokens: mixture [%d, %d] is %g\n", rows, dim, tokens, r, d, static_cast<double>(found));
            return false;
        }
    return true;
}

// A packed group of a quantized type, random codes; every sum stays finite.
static std::vector<uint8_t> random_group(int32_t type, int64_t columns) {
    const TypeInfo info = type_info(type);
    std::vector<uint8_t> stored(static_cast<size_t>(GROUP * stored_row_bytes(info, columns)));
    std::vector<uint8_t> packed(static_cast<size_t>(packed_group_bytes(type, info, columns)));
    for (auto& byte : stored) byte = static_cast<uint8_t>(random_bf16() >> 8 ^ random_bf16());
    for (size_t at = 0; at < stored.size(); at += static_cast<size_t>(info.stored_bytes))
        for (const int i : {1, 3, 209}) {  // the high bytes of scales and minimums, where a type has them
            if (i == 209 ? type == 14 : type != 14 && (i == 1 || (type != 2 && type != 6 && type != 8))) {
                auto& byte = stored[at + static_cast<size_t>(i)];
                byte = static_cast<uint8_t>((byte & 0x83) | 0x18);
            }
        }
    if (tenon_cpu_pack(type, GROUP, columns, stored.data(), static_cast<int64_t>(stored.size()), packed.data(), static_cast<int64_t>(packed.size()))) packed.clear();
    return packed;
}

template <WeightType TYPE>
static bool has_same_bits(int64_t tokens) {
    const auto type = static_cast<int32_t>(TYPE);
    const int64_t columns = type_info(type).columns == 32 ? 160 : 512, blocks = columns / BLOCK, padded = (tokens + 15) / 16 * 16;
    const std::vector<uint8_t> group = random_group(type, columns);
    if (group.empty()) return false;
    std::vector<float> x(static_cast<size_t>(tokens * columns));
    for (auto& value : x) value = bf16_to_f32(random_bf16()) * static_cast<float>(random_bf16() & 0xff);
    x[static_cast<size_t>(x.size() / 2)] = __builtin_inff();
    std::vector<int8_t> codes(x.size()), high(x.size()), low(x.size());
    std::vector<int16_t> words(x.size());
    std::vector<int32_t> halves(static_cast<size_t>(tokens * blocks * 2));
    std::vector<float> scales[2], sums[2], out[4];
    for (int i = 0; i < 2; ++i) scales[i].resize(static_cast<size_t>(padded * blocks)), sums[i].resize(scales[i].size());
    for (auto& one : out) one.resize(static_cast<size_t>(tokens * GROUP));
    std::vector<uint8_t> scratch(static_cast<size_t>(columns * GROUP));
    for (int64_t t = 0; t < tokens; ++t)
        for (int tiled = 0; tiled < 2; ++tiled) {
            const int64_t at = tiled ? t / 16 * 16 * blocks + t % 16 : t * blocks;
            quantize(x.data() + t * columns, columns, tiled ? 16 : 1, codes.data() + t * columns, scales[tiled].data() + at, sums[tiled].data() + at, halves.data() + 2 * t * blocks);
        }
    for (int tiled = 0; tiled < 2; ++tiled) {
        const Activations all = {x.data(), codes.data(), scales[tiled].data(), sums[tiled].data(), halves.data(), nullptr, columns, tiled == 1};
        if (tiled) multiply_tiles<TYPE>(group.data(), all, tokens, out[1].data(), scratch.data());
        else multiply_blocks<TYPE>(group.data(), all, tokens, out[0].data());
    }
    float *units = scales[0].data(), *weights = sums[0].data();
    for (int64_t t = 0; t < tokens; ++t) {
        const FineTaken one = {words.data() + t * BLOCK, units + t, weights + t, halves.data() + 2 * t, high.data() + t * BLOCK, low.data() + t * BLOCK};
        take_fine(x.data() + t * columns, 0, columns, tokens, one);
    }
    const Fine fine = {words.data(), units, weights, halves.data(), high.data(), low.data(), columns, tokens};
    const int64_t first = tokens > 20 ? 3 : 0;
    multiply_fine_blocks<TYPE>(group.data(), fine, first, tokens - first, out[2].data());
    multiply_fine_tiles<TYPE>(group.data(), fine, first, tokens - first, out[3].data(), scratch.data());
    for (int fine_too = 0; fine_too < 4; fine_too += 2)
        for (size_t i = 0; i < out[0].size(); ++i) {
            const float one = out[fine_too][i], other = out[fine_too + 1][i];
            if (one == other || (one != one && other != other)) continue;
            std::fprintf(stderr, "emulated tiles: type %d, %ld tokens, fine %d: %g became %g at %zu\n", type, static_cast<long>(tokens), fine_too, static_cast<double>(one), static_cast<double>(other), i);
            return false;
        }
    return true;
}

static bool have_same_bits(int64_t tokens) {
    return has_same_bits<WeightType::q4_0>(tokens) && has_same_bits<WeightType::q4_1>(tokens) && has_same_bits<WeightType::q5_0>(tokens) &&
           has_same_bits<WeightType::q5_1>(tokens) && has_same_bits<WeightType::q8_0>(tokens) && has_same_bits<WeightType::q4_k>(tokens) &&
           has_same_bits<WeightType::q5_k>(tokens) && has_same_bits<WeightType::q6_k>(tokens);
}

}  // namespace emulated
}  // namespace tenon

bool emulated_tiles_are_right() {
    using namespace tenon::emulated;
    bool right = true;
    for (const int64_t columns : {2, 30, 32, 64, 334, 704})
        for (const int64_t tokens : {1, 4, 15, 16, 17, 32, 33, 48, 49, 63, 64, 65, 79, 80, 112, 125, 128})
            for (const int count : {1, 2, 3, 4}) right = right && is_right(columns, tokens, count);
    for (const int rows : {16, 64, 80})
        for (const int dim : {32, 64, 96, 128}) {
            for (const int tiles : {1, 2, 3, 4}) right = right && are_scores_right(rows, dim, tiles);
            for (const int tokens : {1, 6, 15, 16, 17, 32, 47, 64}) right = right && are_mixtures_right(rows, dim, tokens);
        }
    for (const int64_t tokens : {1, 8, 16, 23, 32, 45}) right = right && have_same_bits(tokens);
    return right && faults == 0;
}
