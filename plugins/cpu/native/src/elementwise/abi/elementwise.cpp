// The elementwise family's exports, and the index arithmetic of a step, which needs no vectors.
#include "elementwise/elementwise.h"

#include <cstring>

#include "step/split.h"
#include "tape.h"

namespace tenon {
namespace {

constexpr int64_t ALONE = 4096;  // numbers that are not worth a second thread

int64_t rows_alone(int64_t width) { return width > 0 ? ALONE / width : ALONE; }

int run_rms_norm(const RMSNormParams& p) {
    split(p.rows, rows_alone(p.hidden), [&](int64_t begin, int64_t end) { element_kernels().rms_norm(p, begin, end); });
    return TENON_OK;
}

int run_activation_mul(const ActivationMulParams& p) {
    split(p.rows, rows_alone(4 * p.width), [&](int64_t begin, int64_t end) { element_kernels().activation_mul(p, begin, end); });
    return TENON_OK;
}

int run_gather(const GatherParams& p) {
    const auto* source = static_cast<const char*>(p.source);
    auto* target = static_cast<char*>(p.target);
    for (int64_t i = 0; i < p.count; ++i) {
        const int64_t from = p.scatters ? i : p.index[i], to = p.scatters ? p.index[i] : i;
        std::memcpy(target + to * p.line, source + from * p.line, static_cast<size_t>(p.line));
    }
    return TENON_OK;
}

int run_scalar(const ScalarParams& p) {
    const auto* integers = static_cast<const int32_t*>(p.source);
    const auto* floats = static_cast<const float*>(p.source);
    for (int64_t i = 0; i < p.count; ++i) {
        switch (p.operation) {
            case 0: static_cast<int32_t*>(p.target)[i] = integers[i] + p.amount; break;
            case 1: static_cast<uint8_t*>(p.target)[i] = integers[i] < p.amount; break;
            case 2: static_cast<float*>(p.target)[i] = floats[i] * p.factor; break;
            default: static_cast<float*>(p.target)[i] = floats[i] / p.factor; break;
        }
    }
    return TENON_OK;
}

int run_choose(const ChooseParams& p) {
    for (int64_t i = 0; i < p.count; ++i) p.target[i] = p.condition[i] ? p.first[i] : p.second[i];
    return TENON_OK;
}

int run_prepare_inputs(const PrepareInputsParams& p) {
    for (int64_t i = 0; i < p.tokens; ++i) {
        const int64_t row = p.rows[p.token_rows[i]];
        p.ids[i] = p.token_ids[i] < 0 ? p.last_tokens[row] : p.token_ids[i];
        const int32_t position = p.positions[i];
        for (int64_t group = 0; group < p.groups; ++group) {
            const int32_t block = p.block_tables[(group * p.all_rows + row) * p.blocks + position / p.block_size];
            p.slots[group * p.tokens + i] = (i < p.num_valid[0] ? block * p.block_size : 0) + position % p.block_size;
        }
    }
    return TENON_OK;
}

}  // namespace

TENON_KERNEL(tenon_rms_norm, run_rms_norm, RMSNormParams)
TENON_KERNEL(tenon_activation_mul, run_activation_mul, ActivationMulParams)
TENON_KERNEL(tenon_gather, run_gather, GatherParams)
TENON_KERNEL(tenon_scalar, run_scalar, ScalarParams)
TENON_KERNEL(tenon_choose, run_choose, ChooseParams)
TENON_KERNEL(tenon_prepare_inputs, run_prepare_inputs, PrepareInputsParams)

}  // namespace tenon
