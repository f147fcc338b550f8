"""Split, per-head norm, rotation and KV write of one layer, in as few torch calls as it takes.

Query and key heads lie side by side in the merged projection's output, so one rotation serves both:

    y = x * [cos cos] + roll(x, half) * [-sin sin]        (halves rotated against each other)

The angles and the cache places of a step's tokens are the same in all layers and come from the step's memo.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec

from .. import kv_cache
from ..step_memo import StepMemo
from .norm import rms_norm


def qk_norm_rope_kv_write(spec: QKNormRopeKVWriteSpec, memo: StepMemo) -> Kernel | No:
    """run(qkv, positions, cos_sin, q_weight, k_weight, cache, slots) -> q, as the reference's."""
    if spec.layout_id != kv_cache.LAYOUT_ID:
        return No(f"writes the KV layout {kv_cache.LAYOUT_ID}, not {spec.layout_id}")
    if spec.dtype != DType.FLOAT32:
        return No(f"rotates in float32 only, not as {spec.dtype} does")
    rope = spec.rope
    if rope is not None and (rope.rotary_dim != spec.head_dim or rope.interleaved or rope.axis_sections):
        return No("rotates whole heads of one position axis, by halves")
    norms = [_norm(part) for part in (spec.q_norm, spec.k_norm)]
    heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    rotated = heads + kv_heads

    def run(
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        split = qkv.view(-1, rotated + kv_heads, dim)
        turning, value = split[:, :rotated], split[:, rotated:]
        if spec.q_norm is not None or spec.k_norm is not None:
            turning = _normalized(turning, q_weight, k_weight)
        if cos_sin is not None:
            # a model may have several ropes: a table lives as long as the model, so its id tells them apart
            cos, sin = memo.get(f"angles {id(cos_sin)}", positions, lambda of: _angles(of, cos_sin))
            turning = torch.addcmul(turning * cos, turning.roll(dim // 2, -1), sin)
        places = memo.get("places", slots, lambda of: kv_cache.split_slots(of, cache.shape[-1] // dim))
        kv_cache.write(turning[:, heads:], value, cache, places)
        return turning[:, :heads]

    def _normalized(x: Tensor, q_weight: Tensor | None, k_weight: Tensor | None) -> Tensor:
        parts = (x[:, :heads], x[:, heads:])
        found = [
            part if norm is None or weight is None else norm(part, weight)
            for part, norm, weight in zip(parts, norms, (q_weight, k_weight), strict=True)
        ]
        return torch.cat(found, dim=1)

    return Kernel(
        name="one rotation for q and k", run=run, flags=KernelFlags(batch_invariant=True, in_place=("cache",))
    )


def _norm(spec: RMSNormSpec | None) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The norm of a head, given the stored weight."""
    if spec is None:
        return None
    kernel = rms_norm(spec)
    assert isinstance(kernel, Kernel)
    run: Callable[[Tensor, Tensor], Tensor] = kernel.run
    offset = spec.weight_offset
    return (lambda x, weight: run(x, weight + offset)) if offset else run


def _angles(positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, 1, head_dim] each: cos twice; -sin, sin."""
    cos, sin = cos_sin.index_select(0, positions[0]).chunk(2, dim=-1)
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)
