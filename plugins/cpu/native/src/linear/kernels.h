// What every instruction set computes of a linear: activations to int8, one group of rows times some tokens, the end.
#pragma once

#include <cstdint>

#include "isa.h"
#include "linear/packed.h"

namespace tenon {

// Activations of some tokens, in the forms that weights ask for. Quantized: x = d q in blocks of 32, d = max|x| / 127;
// halves: sums of q over 16 columns. A block with a value that is not finite has d not-a-number.
struct Activations {
    const float* values;    // [tokens, columns], or null
    const int8_t* codes;    // [tokens, columns], or null
    const float* scales;    // [tokens, columns / 32]; for tiles [tokens / 16, columns / 32, 16]
    const float* sums;      // as scales: scale times the sum of codes
    const int32_t* halves;  // [tokens, columns / 16]
    const uint16_t* bf16;   // [tokens, columns] for tiles, or null
    int64_t columns;
    bool tiled;  // whether quantized weights are multiplied by tiles
};

// Activations of all tokens of a call in int16 codes (fine.inl), block after block, each with all its tokens.
struct Fine {
    const int16_t* codes;   // [columns / 32, tokens, 32], columns in the order of fine.inl
    const float* units;     // [columns / 32, tokens]; x = unit q
    const float* sums;      // [columns / 32, tokens], unit times the sum of codes
    const int32_t* totals;  // [columns / 32, tokens, 2], sums of codes over 16 columns
    const int8_t* high;     // [columns / 32, tokens, 32], or null; code = 256 high + low, columns in their order
    const int8_t* low;
    int64_t columns, tokens;
};

// Where a token's first block goes; the next one is `tokens` further.
struct FineTaken {
    int16_t* codes;
    float* units;
    float* sums;
    int32_t* totals;
    int8_t* high;
    int8_t* low;
};

constexpr int SEVERAL = 4;  // groups

// Two groups of bfloat16 times a block of tokens that pack_tokens has laid out, to the end of it: y.
struct Panel {
    struct End {
        const float* bias;  // [16], or null
        const float* up_bias;
        void* y;  // of the block's first token
        int rows;
    };
    const uint8_t* groups[2];
    const uint16_t* x;  // of pack_tokens
    int64_t columns, tokens;
    float* out[2];  // [tokens, to a multiple of 16, at least 64, 16]: scratch of this thread's
    End ends[2];
    bool is_gated;  // the first group is the second's gate: one end
    int y_type;
    int64_t y_stride;
};

struct LinearKernels {
    // One token. x: `columns` values of a tenon_dtype; values is written where not null, codes likewise. step: from a
    // scale or sum to the next block's.
    void (*take)(const void* x, int dtype, int64_t columns, int64_t step, float* values, int8_t* codes, float* scales,
                 float* sums, int32_t* halves);
    // out [tokens, 16] of one packed group. scratch: columns * 16 bytes of this thread's, 64-aligned.
    void (*multiply)(int32_t type, const uint8_t* group, const Activations& x, int64_t tokens, float* out,
                     uint8_t* scratch);
    // As take and multiply, in int16 codes. tokens: of the whole call.
    void (*take_fine)(const void* x, int dtype, int64_t columns, int64_t tokens, const FineTaken& to);
    void (*multiply_fine)(int32_t type, const uint8_t* group, const Fine& x, int64_t first, int64_t tokens, float* out,
                          uint8_t* scratch);
    // Tokens of a call from which a type's product is made by tiles; the call then says so: x.tiled, x.bf16, fine's high.
    int64_t (*tiles_from)(int32_t type, bool fine);
    // Two groups of bfloat16 at once, where x.bf16 is there; null: no such kernel.
    void (*multiply_pair)(const uint8_t* first, const uint8_t* second, const Activations& x, int64_t tokens, float* out,
                          float* second_out);
    // `count` groups of bfloat16 at once, at most SEVERAL, for at most sixteen tokens; the same bits as one by one.
    void (*multiply_several)(const uint8_t* const* groups, int count, const Activations& x, int64_t tokens, float* const* out);
    // Sixteen tokens, or the last fewer, from `first` on, of a block of `tokens` [tokens, columns] to its packed form, whose
    // tokens and columns are rounded up to 16 and 32.
    void (*pack_tokens)(const uint16_t* x, int64_t columns, int64_t tokens, int64_t first, uint16_t* packed);
    void (*multiply_panel)(const Panel& panel);  // null: no such kernel
    // wide [columns / 2, 16, 2]: a quantized group's weights as bfloat16, for multiply_panel. Null: no such kernel.
    void (*to_bf16)(int32_t type, const uint8_t* group, int64_t columns, uint16_t* wide);
    // y[t, 0..rows) of a tenon_dtype = out[t] + bias; with `up`: silu(out[t] + bias) * (up[t] + up_bias).
    void (*finish)(const float* out, const float* up, const float* bias, const float* up_bias, int64_t tokens,
                   int rows, void* y, int dtype, int64_t stride);
    // y [columns] of a tenon_dtype = the sum of rows `at` of `rows` [., columns], each times its weight, in that order.
    void (*add_rows)(const float* rows, const int32_t* at, const float* weights, int count, int64_t columns, void* y, int dtype);
    // values [columns]: one row of a packed weight.
    void (*expand)(int32_t type, const uint8_t* packed, int64_t columns, int64_t row, float* values);
    // y [columns] of a tenon_dtype.
    void (*put_row)(const float* values, int64_t columns, void* y, int dtype);
};

TENON_FAMILY(LinearKernels, linear_kernels)

}  // namespace tenon
