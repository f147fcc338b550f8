"""Which layers share block tables: the layer groups of a model, all drawing blocks from one pool.

    layers        S S S S S F S S S S S F         (sliding window, full)
    group size    2 = layers of the rarest kind
    groups        [S S] [S S] [S S] [S S] [S S] [F F]

Every group has at most `group size` layers, so one block id means the same bytes for all groups: cache slot i of a
block belongs to the i-th layer of whichever group owns the block.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon_platforms.dtypes import DType
from tenon_platforms.model import ModelSpec
from tenon_platforms.ops.attention import AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """One group before its backend is chosen."""

    spec: AttentionSpec
    layers: tuple[int, ...]


def attention_spec(model: ModelSpec, layer: int, *, dtype: DType, kv_dtype: DType) -> AttentionSpec:
    """The attention a layer's mixer needs."""
    mixer = model.layers[layer].mixer
    return AttentionSpec(
        num_heads=mixer.num_heads,
        num_kv_heads=mixer.num_kv_heads,
        head_dim=mixer.head_dim,
        scale=mixer.scale,
        dtype=dtype,
        kv_dtype=kv_dtype,
        sliding_window=mixer.sliding_window,
        soft_cap=mixer.soft_cap,
        sinks=mixer.sinks,
        causal=model.causal,
    )


def plan_groups(model: ModelSpec, *, dtype: DType, kv_dtype: DType) -> tuple[GroupPlan, ...]:
    """Partition the layers by kind of attention, then into groups of the rarest kind's size."""
    kinds: dict[AttentionSpec, list[int]] = {}
    for layer in range(len(model.layers)):
        kinds.setdefault(attention_spec(model, layer, dtype=dtype, kv_dtype=kv_dtype), []).append(layer)
    size = min((len(layers) for layers in kinds.values()), default=0)
    return tuple(
        GroupPlan(spec=spec, layers=tuple(layers[start : start + size]))
        for spec, layers in kinds.items()
        for start in range(0, len(layers), size)
    )
