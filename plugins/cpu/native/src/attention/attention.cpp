// Paged attention and what writes the KV cache, compiled once per instruction set.
#include <cstdint>

#if TENON_LEVEL_NUMBER >= 1
#include <immintrin.h>
#endif

#include "attention/attention.h"

namespace tenon {
namespace TENON_LEVEL {
namespace {

#include "step/vec.h"

#if TENON_LEVEL_NUMBER == 4
#define TENON_TILES
#include "tile_config.inl"

#include "attention/attention_tiles.inl"
#endif
#include "attention/attention.inl"
#include "attention/kv_cache.inl"

}  // namespace

extern const AttentionKernels attention_kernels = {attention, write_kv, exchange_blocks, qk_norm_rope_write};

}  // namespace TENON_LEVEL
}  // namespace tenon
