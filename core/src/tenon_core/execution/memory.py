"""The memory plan: how many KV blocks fit beside weights and activations.

Every figure is bytes and is kept, so that the start-up report can show where the memory went.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon_platforms.device import MemoryInfo
from tenon_platforms.errors import CapacityError
from tenon_platforms.model import ModelSpec, MoE
from tenon_platforms.shapes import ScheduleLimits

ACTIVATION_COPIES = 4  # live copies of the widest activation in a layer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes, but for num_blocks. free: before the plan, weights already loaded."""

    weights: int
    activations: int
    block: int
    num_blocks: int
    free: int
    total: int

    @property
    def kv(self) -> int:
        """Bytes of the KV pool."""
        return self.block * self.num_blocks


def activation_bytes(model: ModelSpec, limits: ScheduleLimits, element: int) -> int:
    """Bytes that one step's activations need at most: the widest layer for all tokens, and logits in float32."""
    widest = max(
        (layer.ffn.intermediate * layer.ffn.top_k if isinstance(layer.ffn, MoE) else layer.ffn.intermediate) * 2
        + layer.mixer.num_heads * layer.mixer.head_dim * 3
        for layer in model.layers
    )
    per_token = (widest + 2 * model.hidden) * element * ACTIVATION_COPIES
    return limits.max_tokens * per_token + min(limits.max_rows, limits.max_tokens) * model.vocab_size * 4 * 3


def plan_memory(
    *,
    memory: MemoryInfo,
    share: float,
    weights: int,
    activations: int,
    block: int,
    wanted_blocks: int,
    num_blocks: int | None,
    kv_bytes: int | None,
) -> MemoryPlan:
    """Blocks from, in this order: a number, bytes, or the share of memory that is left.

    wanted_blocks: more are never useful (every row at full length). Raises `CapacityError` with the figures.
    """
    if num_blocks is None:
        if kv_bytes is not None:
            room = kv_bytes
        else:
            used = memory.total - memory.free
            room = min(int(memory.total * share) - used, memory.free) - activations
            if room <= 2 * block:  # the share is used up by others: take a part of what is really free
                room = int(memory.free * share) - activations
        num_blocks = min(room // block, wanted_blocks)
    if num_blocks < 2:
        raise CapacityError(
            f"no memory for the KV cache: a block takes {block} bytes, weights {weights}, activations {activations};"
            f" {memory.free} of {memory.total} bytes are free and the share is {share:.2f}",
            remedy="raise --memory-utilization, lower --max-num-batched-tokens or --max-num-seqs, or name"
            " --kv-cache-memory",
        )
    if num_blocks * block > memory.total:
        raise CapacityError(
            f"{num_blocks} KV blocks of {block} bytes take {num_blocks * block} bytes, the device has {memory.total}",
            remedy="lower --num-blocks or --kv-cache-memory, or leave them out: then the KV cache takes its share",
        )
    return MemoryPlan(
        weights=weights,
        activations=activations,
        block=block,
        num_blocks=num_blocks,
        free=memory.free,
        total=memory.total,
    )
