// Packed weights: rows in groups of 16, columns in blocks of 32 (K types: 8 blocks a super-block), bits as in the file.
//
// A group's block holds, for step s = 0..7, the codes of columns 4s..4s+3 of all 16 rows: 64 bytes, four a row. That is
// one vector of 16 dwords, which a dot product takes against the same four activations in every lane; it is also a
// row of AMX's B tile. Four bits: byte i of 256 = step i / 64 (low nibble) and step 4 + i / 64 (high nibble).
//
//     Q4_0  [256 codes][16 d]                       w = d (q - 8)          d, m: float16
//     Q4_1  [256 codes][16 d][16 m]                 w = d q + m
//     Q5_0  [256 codes][64 fifth bits][16 d]        w = d (q - 16)         bit s of byte i: of step s
//     Q5_1  [256 codes][64 fifth bits][16 d][16 m]  w = d q + m
//     Q8_0  [512 codes][16 d]                       w = d q                q signed
//     Q4_K  [16 d][16 dmin] 8 x [256 codes][16 scales][16 minimums]                  w = d s q - dmin m
//     Q5_K  [16 d][16 dmin] 8 x [256 codes][64 fifth bits][16 scales][16 minimums]
//     Q6_K  [16 d] 8 x [256 codes][128 high bits][2 x 16 scales]                     w = d s (q - 32)
//     F32, F16  [16] a column                       BF16  [16][2] a pair of columns (a last odd column: with 0)
//
// The same bytes as the file's, so a packed weight can be turned back. Rows beyond the last are zero.
#pragma once

#include <cstdint>

namespace tenon {

constexpr int GROUP = 16;
constexpr int BLOCK = 32;
constexpr int SUPER = 256;

// ggml's ids, as in GGUF files.
enum class WeightType : int32_t {
    f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q4_k = 12, q5_k = 13, q6_k = 14, bf16 = 30
};

struct TypeInfo {
    int columns;       // of a block in the file, which `in_features` is a multiple of; 0: no such type
    int stored_bytes;  // of such a block, one row
    int packed_bytes;  // of such a block, 16 rows
    bool quantized;    // takes int8 activations
};

inline TypeInfo type_info(int32_t type) {
    switch (static_cast<WeightType>(type)) {
        case WeightType::f32: return {1, 4, 64, false};
        case WeightType::f16: return {1, 2, 32, false};
        case WeightType::bf16: return {1, 2, 32, false};
        case WeightType::q4_0: return {32, 18, 288, true};
        case WeightType::q4_1: return {32, 20, 320, true};
        case WeightType::q5_0: return {32, 22, 352, true};
        case WeightType::q5_1: return {32, 24, 384, true};
        case WeightType::q8_0: return {32, 34, 544, true};
        case WeightType::q4_k: return {256, 144, 64 + 8 * 288, true};
        case WeightType::q5_k: return {256, 176, 64 + 8 * 352, true};
        case WeightType::q6_k: return {256, 210, 32 + 8 * 416, true};
    }
    return {0, 0, 0, false};
}

// Bytes of a stored row of `columns`, and of a packed group; columns must be a multiple of the type's.
inline int64_t stored_row_bytes(const TypeInfo& info, int64_t columns) {
    return columns / info.columns * info.stored_bytes;
}
inline int64_t packed_group_bytes(int32_t type, const TypeInfo& info, int64_t columns) {
    if (static_cast<WeightType>(type) == WeightType::bf16) columns += columns & 1;
    return columns / info.columns * info.packed_bytes;
}
inline int64_t num_groups(int64_t rows) {
    return (rows + GROUP - 1) / GROUP;
}

}  // namespace tenon
