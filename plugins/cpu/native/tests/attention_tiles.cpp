// Attention's products over emulated tiles and portable vectors, so that they are checked where no CPU has them: alone, and as
// attention runs them.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#define TENON_LEVEL emulated_attention
#define TENON_LEVEL_NUMBER 0
#include "attention/attention.h"

namespace tenon {
namespace emulated_attention {

#include "emulated_tiles.inl"

#include "step/vec.h"

#define TENON_TILES
#include "attention/attention_tiles.inl"
#include "attention/attention.inl"

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

}  // namespace emulated_attention
}  // namespace tenon

// As the ABI's call, one part of the plan after the other.
void attend_on_emulated_tiles(const tenon::AttentionParams& params) {
    using namespace tenon;
    std::vector<float> scratch(static_cast<size_t>(unit_rows(params.heads / params.kv_heads) * (2 * params.dim + KEY_BLOCK + 2) + KEY_BLOCK / 2 * params.dim), __builtin_nanf(""));
    for (int part = 0; part < params.plan[0]; ++part) emulated_attention::attention(params, part, scratch.data());
}

bool attention_tiles_are_right() {
    using namespace tenon::emulated_attention;
    bool right = true;
    for (const int rows : {16, 64, 80})
        for (const int dim : {32, 64, 96, 128}) {
            for (const int tiles : {1, 2, 3, 4}) right = right && are_scores_right(rows, dim, tiles);
            for (const int tokens : {1, 6, 15, 16, 17, 32, 47, 64}) right = right && are_mixtures_right(rows, dim, tokens);
        }
    return right && faults == 0;
}
