// The family of kernels on rows of numbers. Each computes rows [begin, end); abi/ splits them over threads.
#pragma once

#include "isa.h"
#include "step/params.h"

namespace tenon {

struct ElementKernels {
    void (*rms_norm)(const RMSNormParams&, int64_t begin, int64_t end);
    void (*activation_mul)(const ActivationMulParams&, int64_t begin, int64_t end);
    // What sampling needs of one row of floats.
    void (*widen)(const void* row, int type, float* wide, int64_t n);
    void (*divide)(float* row, float divisor, int64_t n);
    int64_t (*best)(const void* row, int type, int64_t n);  // the lowest index of the greatest value; of any type
    int64_t (*next_at_least)(const float* row, int64_t from, int64_t n, float bar);  // n: none
    float (*sum_exp)(const float* row, float shift, int64_t n);
    // Elements [begin, end) of y: the sum of `count` arrays, `stride` bytes apart, in their order, rounded once.
    void (*add_up)(const uint8_t* first, int64_t stride, int count, void* y, int type, int64_t begin, int64_t end);
};

TENON_FAMILY(ElementKernels, element_kernels)

}  // namespace tenon
