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
    const float* scales;    // [tokens, columns / 32]
    const int32_t* halves;  // [tokens, columns / 16]
    const uint16_t* bf16;   // [tokens, columns], or null; there where x is bfloat16 and columns even
    int64_t columns;
};

struct LinearKernels {
    // One token. x: `columns` values of a tenon_dtype; values is written where not null, codes likewise.
    void (*take)(const void* x, int dtype, int64_t columns, float* values, int8_t* codes, float* scales,
                 int32_t* halves);
    // out [tokens, 16] of one packed group. scratch: columns * 16 bytes of this thread's, 64-aligned.
    void (*multiply)(int32_t type, const uint8_t* group, const Activations& x, int64_t tokens, float* out,
                     uint8_t* scratch);
    // y[t, 0..rows) of a tenon_dtype = out[t] + bias; with `up`: silu(out[t] + bias) * (up[t] + up_bias).
    void (*finish)(const float* out, const float* up, const float* bias, const float* up_bias, int64_t tokens,
                   int rows, void* y, int dtype, int64_t stride);
    // values [columns]: one row of a packed weight.
    void (*expand)(int32_t type, const uint8_t* packed, int64_t columns, int64_t row, float* values);
    // y [columns] of a tenon_dtype.
    void (*put_row)(const float* values, int64_t columns, void* y, int dtype);
};

TENON_FAMILY(LinearKernels, linear_kernels)

}  // namespace tenon
