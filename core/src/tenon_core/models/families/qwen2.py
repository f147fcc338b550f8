"""Qwen 2 and 2.5: Llama with biases on q, k and v, and, where a configuration asks for it, sliding upper layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.model import AttentionMixer, GatedMLP, Layer, ModelSpec

from ..family import Family
from . import common


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Qwen 2 configuration."""
    dim, (query, keys) = common.head_dim(config), common.heads(config)
    norm, rope = common.norm(config), common.rope(config, dim, max_positions)
    ffn = GatedMLP(intermediate=common.positive(config, "intermediate_size"), activation=common.activation(config))
    layers = tuple(
        Layer(
            mixer=AttentionMixer(
                num_heads=query,
                num_kv_heads=keys,
                head_dim=dim,
                scale=dim**-0.5,
                rope=rope,
                qkv_bias=True,
                sliding_window=window,
            ),
            ffn=ffn,
            pre_mixer=norm,
            pre_ffn=norm,
        )
        for window in common.layer_windows(config, used_window(config))
    )
    return common.decoder(config, max_positions, layers)


def used_window(config: Mapping[str, Any]) -> int:
    """The sliding window where `use_sliding_window` turns it on, else 0."""
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return 0
    return common.positive(config, "sliding_window")


FAMILY = Family(name="qwen2", architectures=common.served_as("Qwen2"), spec=spec)
