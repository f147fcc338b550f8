// The family of kernels that read or write the KV cache. Each computes a share; abi/ splits the work over threads.
#pragma once

#include "isa.h"
#include "step/params.h"

namespace tenon {

struct AttentionKernels {
    // The units of one thread of the plan. scratch: attention_scratch floats of this thread's own.
    void (*attention)(const AttentionParams&, int thread, float* scratch);
    // Tokens [begin, end), blocks [begin, end), lines (token, head) [begin, end).
    void (*write_kv)(const KVWriteParams&, int64_t begin, int64_t end);
    void (*exchange_blocks)(const KVExchangeParams&, int64_t begin, int64_t end);
    void (*qk_norm_rope_write)(const QKNormRopeWriteParams&, int64_t begin, int64_t end);
};

TENON_FAMILY(AttentionKernels, attention_kernels)

}  // namespace tenon
