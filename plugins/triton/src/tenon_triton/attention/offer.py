"""The offer for `AttentionSpec`: what this family serves, as a platform hands it to the op table.

table.offer(AttentionSpec, "triton paged", lambda spec: paged_attention(spec, device, facts), features=FEATURES)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenon_platforms.attention import attention_kernel
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No

from ..facts import DeviceFacts
from .backend import KERNEL_BLOCK, PREFERRED_BLOCK, TritonAttention
from .configs import AttentionConfigs

if TYPE_CHECKING:
    from tenon_platforms.device import Device
    from tenon_platforms.ops.attention import AttentionSpec

    from .long_prompts import LongPrompts

FEATURES = frozenset({"attention.sliding_window", "attention.soft_cap", "attention.sinks", "attention.bidirectional"})
DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
MAX_HEAD_DIM = 256
MAX_GROUP = 128


def paged_attention(
    spec: AttentionSpec,
    device: Device,
    facts: DeviceFacts,
    *,
    batch_invariant: bool = False,
    kernel_block: int = KERNEL_BLOCK,
    preferred_block: int = PREFERRED_BLOCK,
    configs: AttentionConfigs | None = None,
    long_prompts: LongPrompts | None = None,
) -> Kernel | No:
    """A kernel with its backend, or why not. kernel_block: 16, 32 or 64 tokens; preferred_block: a multiple of it."""
    refused = _refusal(spec, facts, kernel_block)
    if refused is not None:
        return refused
    backend = TritonAttention(
        spec,
        device,
        facts,
        batch_invariant=batch_invariant,
        kernel_block=kernel_block,
        preferred_block=preferred_block,
        configs=configs,
        long_prompts=long_prompts,
    )
    flags = KernelFlags(batch_invariant=batch_invariant, workspace_bytes=backend.workspace_bytes)
    return attention_kernel("triton.paged", backend, flags=flags)


def _refusal(spec: AttentionSpec, facts: DeviceFacts, kernel_block: int) -> No | None:
    if spec.tree_mask:
        return No("has no tree mask")
    if spec.dtype not in DTYPES:
        return No(f"computes in bfloat16, float16 or float32, not in {spec.dtype}")
    if spec.kv_dtype == DType.FLOAT8_E4M3:
        if not facts.fp8:
            return No("this device has no float8_e4m3 conversions", alternative="--kv-cache-dtype auto")
    elif spec.kv_dtype != spec.dtype and not (spec.dtype == DType.FLOAT32 and spec.kv_dtype in DTYPES):
        return No(f"no KV cache in {spec.kv_dtype} under queries in {spec.dtype}", alternative="--kv-cache-dtype auto")
    if spec.head_dim > MAX_HEAD_DIM or spec.head_dim % 8:
        return No(f"heads of a multiple of 8 up to {MAX_HEAD_DIM} elements, not of {spec.head_dim}")
    if spec.num_heads % spec.num_kv_heads or spec.num_heads // spec.num_kv_heads > MAX_GROUP:
        return No(f"{spec.num_heads} query heads on {spec.num_kv_heads} KV heads: needs whole groups up to {MAX_GROUP}")
    if spec.scale <= 0:
        return No(f"needs a positive scale, not {spec.scale}")
    if kernel_block not in (16, 32, 64):
        return No(f"blocks of 16, 32 or 64 tokens, not of {kernel_block}")
    return None
