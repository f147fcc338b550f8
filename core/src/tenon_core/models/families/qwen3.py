"""Qwen 3, dense: no biases, an RMS norm on every query and key head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.model import AttentionMixer, GatedMLP, Layer, ModelSpec

from ..family import Family
from . import common
from .qwen2 import used_window


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Qwen 3 configuration."""
    norm = common.norm(config)
    ffn = GatedMLP(intermediate=common.positive(config, "intermediate_size"), activation=common.activation(config))
    layers = tuple(
        Layer(mixer=mixer(config, max_positions, window), ffn=ffn, pre_mixer=norm, pre_ffn=norm)
        for window in common.layer_windows(config, used_window(config))
    )
    return common.decoder(config, max_positions, layers)


def mixer(config: Mapping[str, Any], max_positions: int, window: int) -> AttentionMixer:
    """The attention of Qwen 3, dense or with experts."""
    dim, (query, keys) = common.head_dim(config), common.heads(config)
    bias = bool(config.get("attention_bias", False))
    return AttentionMixer(
        num_heads=query,
        num_kv_heads=keys,
        head_dim=dim,
        scale=dim**-0.5,
        rope=common.rope(config, dim, max_positions),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=common.norm(config),
        sliding_window=window,
    )


FAMILY = Family(name="qwen3", architectures=common.served_as("Qwen3"), spec=spec)
