// Norms, activations and sampling's passes over a row, compiled once per instruction set.
#include <cmath>
#include <cstdint>

#if TENON_LEVEL_NUMBER >= 1
#include <immintrin.h>
#endif

#include "elementwise/elementwise.h"

namespace tenon {
namespace TENON_LEVEL {
namespace {

#include "step/vec.h"

#include "elementwise/elementwise.inl"

}  // namespace

extern const ElementKernels element_kernels = {rms_norm, activation_mul, widen, divide, best, next_at_least, sum_exp, add_up};

}  // namespace TENON_LEVEL
}  // namespace tenon
