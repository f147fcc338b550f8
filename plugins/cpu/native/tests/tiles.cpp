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
#include "tenon_cpu.h"

namespace tenon {
namespace emulated {

#include "emulated_tiles.inl"

#include "linear/bytes.inl"
#include "linear/blocks.inl"
#include "linear/pairs.inl"
#include "linear/take.inl"
#include "linear/fine.inl"
#include "linear/finish.inl"
#include "linear/tiles.inl"
#include "linear/widen.inl"
#include "linear/bf16_tiles.inl"
#include "linear/bf16_panels.inl"

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

static double dot(const uint16_t* x, const uint16_t* group, int64_t columns, int64_t row) {
    double exact = 0;
    for (int64_t c = 0; c < columns; ++c) exact += static_cast<double>(bf16_at(x, c)) * bf16_at(group, 32 * (c / 2) + 2 * row + c % 2);
    return exact;
}

// Two groups, the second of `rows` rows, with their end: a bias, or a gate and its up; y is float32 or bfloat16 of wider rows.
static bool panel_is_right(int64_t columns, int64_t tokens, int rows, bool is_gated, int y_type) {
    const int64_t stride = 40, padded = (tokens + 15) / 16 * 16;
    std::vector<uint16_t> x(static_cast<size_t>(tokens * columns)), weights(static_cast<size_t>(2 * columns * GROUP)), narrow(static_cast<size_t>(tokens * stride), 7);
    std::vector<uint16_t> packed(static_cast<size_t>(padded * ((columns + 31) / 32 * 32)), 0x7fc0);
    std::vector<float> wide(narrow.size(), 7), bias(2 * GROUP), out[2];
    for (auto* all : {&x, &weights})
        for (auto& value : *all) value = random_bf16();
    for (auto& value : bias) value = bf16_to_f32(random_bf16());
    x[static_cast<size_t>((tokens - 1) * columns)] = 0x7fc0;  // not a number: no other token may meet it
    for (auto& one : out) one.resize(static_cast<size_t>((padded < 64 ? 64 : padded) * GROUP));
    for (int64_t t = 0; t < tokens; t += 16) pack_tokens(x.data(), columns, tokens, t, packed.data());
    const uint16_t *first = weights.data(), *second = first + columns * GROUP;
    Panel panel{{reinterpret_cast<const uint8_t*>(first), reinterpret_cast<const uint8_t*>(second)}, packed.data(), columns, tokens, {out[0].data(), out[1].data()}, {}, is_gated, y_type, stride};
    uint8_t* y = y_type == 0 ? reinterpret_cast<uint8_t*>(wide.data()) : reinterpret_cast<uint8_t*>(narrow.data());
    panel.ends[0] = {bias.data(), is_gated ? bias.data() + GROUP : nullptr, y, is_gated ? rows : GROUP};
    panel.ends[1] = {bias.data() + GROUP, nullptr, y + GROUP * (y_type == 0 ? 4 : 2), rows};
    multiply_panel(panel);
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t r = 0; r < stride; ++r) {
            const size_t at = static_cast<size_t>(t * stride + r);
            const double found = y_type == 0 ? static_cast<double>(wide[at]) : r < (is_gated ? 0 : GROUP) + rows ? static_cast<double>(bf16_to_f32(narrow[at])) : narrow[at];
            double exact = 7;
            if (r < (is_gated ? 0 : GROUP) + rows) {
                exact = dot(x.data() + t * columns, r < GROUP ? first : second, columns, r % GROUP) + static_cast<double>(bias[static_cast<size_t>(r)]);
                if (is_gated) exact = exact / (1 + std::exp(-exact)) * (dot(x.data() + t * columns, second, columns, r) + static_cast<double>(bias[static_cast<size_t>(GROUP + r)]));
            }
            const double most = 1e-5 * static_cast<double>(columns) * (is_gated ? std::sqrt(static_cast<double>(columns)) + 4 : 1) + (y_type == 0 ? 1e-6 : 1.0 / 256) * std::fabs(exact);
            if (std::fabs(exact - found) <= most || (exact != exact && found != found)) continue;
            std::fprintf(stderr, "emulated panel: %ld columns, %ld tokens, gated %d, type %d: %g for %g at [%ld, %ld]\n", static_cast<long>(columns), static_cast<long>(tokens), is_gated, y_type, found, exact, static_cast<long>(t), static_cast<long>(r));
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

// Each weight, as a row of the packed table is expanded, to the nearest bfloat16.
static bool are_rounded(int32_t type) {
    const int64_t columns = type_info(type).columns == 32 ? 160 : 512, bytes = packed_group_bytes(type, type_info(type), columns);
    const std::vector<uint8_t> group = random_group(type, columns);
    std::vector<uint16_t> wide(static_cast<size_t>(columns * GROUP + 1), 7);
    void* aligned = nullptr;
    if (group.empty() || posix_memalign(&aligned, 64, static_cast<size_t>(bytes)) != 0) return false;
    std::memcpy(aligned, group.data(), static_cast<size_t>(bytes));
    to_bf16(type, group.data(), columns, wide.data());
    bool right = wide.back() == 7;
    std::vector<float> exact(static_cast<size_t>(columns));
    for (int32_t row = 0; row < GROUP; ++row) {
        const tenon_embedding_call look = {aligned, &row, exact.data(), bytes, GROUP, columns, 1, columns, type, 4, TENON_F32, 1.0f};
        right = right && tenon_cpu_embedding(&look) == TENON_OK;
        for (int64_t c = 0; c < columns && right; ++c) {
            const float found = bf16_to_f32(wide[static_cast<size_t>(32 * (c / 2) + 2 * row + c % 2)]), value = exact[static_cast<size_t>(c)];
            right = std::fabs(found - value) <= std::fabs(value) * (1.001f / 256) + 1e-37f;
            if (!right) std::fprintf(stderr, "a weight of type %d became %g, not %g, at [%d, %ld]\n", type, static_cast<double>(found), static_cast<double>(value), row, static_cast<long>(c));
        }
    }
    std::free(aligned);
    return right;
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
    for (const int64_t columns : {2, 30, 32, 64, 98, 334, 640, 704, 1182})  // the last two in parts
        for (const int64_t tokens : {17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 80, 96, 97, 100, 144})
            for (const bool is_gated : {false, true})
                right = right && panel_is_right(columns, tokens, tokens % 3 == 0 ? 5 : 16, is_gated, static_cast<int>(columns / 2 + tokens) % 2);
    for (const int64_t tokens : {1, 8, 16, 23, 32, 45}) right = right && have_same_bits(tokens);
    for (const int32_t type : {2, 3, 6, 7, 8, 12, 13, 14}) right = right && are_rounded(type);
    return right && faults == 0;
}
