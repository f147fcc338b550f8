// The kernels of linears, for one instruction set.
#include "linear/kernels.h"

#include "level.h"

namespace tenon {
namespace TENON_LEVEL {

#include "linear/bytes.inl"
#include "linear/blocks.inl"
#include "linear/pairs.inl"
#include "linear/dense.inl"
#include "linear/expand.inl"
#include "linear/take.inl"
#include "linear/fine.inl"
#include "linear/finish.inl"
#if TENON_LEVEL_NUMBER == 4
#include "tile_config.inl"
#include "linear/tiles.inl"
#include "linear/widen.inl"
#include "linear/bf16_tiles.inl"
#include "linear/bf16_panels.inl"
#include "linear/tiles_from.inl"
#endif

static int64_t tiles_from(int32_t type, bool fine) {
#if TENON_LEVEL_NUMBER == 4
    for (const TilesFrom& one : TILES_FROM)
        if (static_cast<int32_t>(one.type) == type) return fine ? one.fine : one.codes;
#endif
    (void)type, (void)fine;
    return INT64_MAX;
}

static void take(const void* x, int dtype, int64_t columns, int64_t step, float* values, int8_t* codes, float* scales,
                 float* sums, int32_t* halves) {
    const float* wide = dtype == 0 ? static_cast<const float*>(x) : values;
    if (values != nullptr) widen(x, dtype, columns, values);
    if (codes != nullptr) quantize(wide, columns, step, codes, scales, sums, halves);
}

template <WeightType TYPE>
static void multiply_quantized(const uint8_t* group, const Activations& x, int64_t tokens, float* out,
                               uint8_t* scratch) {
#if TENON_LEVEL_NUMBER == 4
    if (x.tiled) return multiply_tiles<TYPE>(group, x, tokens, out, scratch);
#endif
    (void)scratch;
    multiply_blocks<TYPE>(group, x, tokens, out);
}

static void multiply(int32_t type, const uint8_t* group, const Activations& x, int64_t tokens, float* out,
                     uint8_t* scratch) {
    switch (static_cast<WeightType>(type)) {
        case WeightType::f32: return multiply_dense<WeightType::f32>(group, x, tokens, out);
        case WeightType::f16: return multiply_dense<WeightType::f16>(group, x, tokens, out);
        case WeightType::bf16:
#if TENON_LEVEL_NUMBER == 4
            if (x.bf16 != nullptr) return multiply_bf16_tiles(group, x, tokens, out);
#endif
            return multiply_dense<WeightType::bf16>(group, x, tokens, out);
        case WeightType::q4_0: return multiply_quantized<WeightType::q4_0>(group, x, tokens, out, scratch);
        case WeightType::q4_1: return multiply_quantized<WeightType::q4_1>(group, x, tokens, out, scratch);
        case WeightType::q5_0: return multiply_quantized<WeightType::q5_0>(group, x, tokens, out, scratch);
        case WeightType::q5_1: return multiply_quantized<WeightType::q5_1>(group, x, tokens, out, scratch);
        case WeightType::q8_0: return multiply_quantized<WeightType::q8_0>(group, x, tokens, out, scratch);
        case WeightType::q4_k: return multiply_quantized<WeightType::q4_k>(group, x, tokens, out, scratch);
        case WeightType::q5_k: return multiply_quantized<WeightType::q5_k>(group, x, tokens, out, scratch);
        case WeightType::q6_k: return multiply_quantized<WeightType::q6_k>(group, x, tokens, out, scratch);
    }
}

template <WeightType TYPE>
static void multiply_fine_of(const uint8_t* group, const Fine& x, int64_t first, int64_t tokens, float* out,
                             uint8_t* scratch) {
#if TENON_LEVEL_NUMBER == 4
    if (x.high != nullptr) return multiply_fine_tiles<TYPE>(group, x, first, tokens, out, scratch);
#endif
    (void)scratch;
    multiply_fine_blocks<TYPE>(group, x, first, tokens, out);
}

static void multiply_fine(int32_t type, const uint8_t* group, const Fine& x, int64_t first, int64_t tokens, float* out,
                          uint8_t* scratch) {
    switch (static_cast<WeightType>(type)) {
        case WeightType::q4_0: return multiply_fine_of<WeightType::q4_0>(group, x, first, tokens, out, scratch);
        case WeightType::q4_1: return multiply_fine_of<WeightType::q4_1>(group, x, first, tokens, out, scratch);
        case WeightType::q5_0: return multiply_fine_of<WeightType::q5_0>(group, x, first, tokens, out, scratch);
        case WeightType::q5_1: return multiply_fine_of<WeightType::q5_1>(group, x, first, tokens, out, scratch);
        case WeightType::q8_0: return multiply_fine_of<WeightType::q8_0>(group, x, first, tokens, out, scratch);
        case WeightType::q4_k: return multiply_fine_of<WeightType::q4_k>(group, x, first, tokens, out, scratch);
        case WeightType::q5_k: return multiply_fine_of<WeightType::q5_k>(group, x, first, tokens, out, scratch);
        case WeightType::q6_k: return multiply_fine_of<WeightType::q6_k>(group, x, first, tokens, out, scratch);
        default: return;  // dense parts take no codes
    }
}

static void expand(int32_t type, const uint8_t* packed, int64_t columns, int64_t row, float* values) {
    const uint8_t* group = packed + row / GROUP * packed_group_bytes(type, type_info(type), columns);
    const int lane = static_cast<int>(row % GROUP);
    switch (static_cast<WeightType>(type)) {
        case WeightType::f32: return expand_dense<WeightType::f32>(group, lane, columns, values);
        case WeightType::f16: return expand_dense<WeightType::f16>(group, lane, columns, values);
        case WeightType::bf16: return expand_dense<WeightType::bf16>(group, lane, columns, values);
        case WeightType::q4_0: return expand_blocks<WeightType::q4_0>(group, lane, columns, values);
        case WeightType::q4_1: return expand_blocks<WeightType::q4_1>(group, lane, columns, values);
        case WeightType::q5_0: return expand_blocks<WeightType::q5_0>(group, lane, columns, values);
        case WeightType::q5_1: return expand_blocks<WeightType::q5_1>(group, lane, columns, values);
        case WeightType::q8_0: return expand_blocks<WeightType::q8_0>(group, lane, columns, values);
        case WeightType::q4_k: return expand_blocks<WeightType::q4_k>(group, lane, columns, values);
        case WeightType::q5_k: return expand_blocks<WeightType::q5_k>(group, lane, columns, values);
        case WeightType::q6_k: return expand_blocks<WeightType::q6_k>(group, lane, columns, values);
    }
}

static void put_row(const float* values, int64_t columns, void* y, int dtype) {
    int64_t c = 0;
    for (; dtype == 1 && c + W <= columns; c += W) vstore_bf16(static_cast<uint16_t*>(y) + c, vload(values + c));
    for (; c < columns; ++c) put(y, dtype, c, values[c]);
}

#if TENON_LEVEL_NUMBER != 4
constexpr decltype(LinearKernels::multiply_pair) multiply_pair = nullptr;
constexpr decltype(LinearKernels::multiply_several) multiply_several = nullptr;
constexpr decltype(LinearKernels::pack_tokens) pack_tokens = nullptr;
constexpr decltype(LinearKernels::multiply_panel) multiply_panel = nullptr;
constexpr decltype(LinearKernels::to_bf16) to_bf16 = nullptr;
#endif

extern const LinearKernels linear_kernels = {take,          multiply, take_fine, multiply_fine, tiles_from,
                                             multiply_pair, multiply_several, pack_tokens, multiply_panel, to_bf16, finish, add_rows, expand, put_row};

}  // namespace TENON_LEVEL
}  // namespace tenon
