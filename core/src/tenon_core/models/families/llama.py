"""Llama, Mistral and what is built like them: pre-norm, grouped-query attention, gated MLP.

Only Mistral has a sliding window (on every layer; null: none), and only Llama has projection biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.model import AttentionMixer, GatedMLP, Layer, ModelSpec

from ..family import Family
from . import common

MISTRAL = "Mistral"
MISTRAL_WINDOW = 4096  # where the key is absent, as in Transformers


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Llama-like configuration."""
    common.only(config, "mlp_bias", False)
    is_mistral = common.architecture(config).startswith(MISTRAL)
    dim, (query, keys) = common.head_dim(config), common.heads(config)
    norm = common.norm(config)
    bias = not is_mistral and bool(config.get("attention_bias", False))
    layer = Layer(
        mixer=AttentionMixer(
            num_heads=query,
            num_kv_heads=keys,
            head_dim=dim,
            scale=dim**-0.5,
            rope=common.rope(config, dim, max_positions),
            qkv_bias=bias,
            out_bias=bias,
            sliding_window=window(config, MISTRAL_WINDOW) if is_mistral else 0,
        ),
        ffn=GatedMLP(intermediate=common.positive(config, "intermediate_size"), activation=common.activation(config)),
        pre_mixer=norm,
        pre_ffn=norm,
    )
    return common.decoder(config, max_positions, (layer,) * common.positive(config, "num_hidden_layers"))


def window(config: Mapping[str, Any], default: int) -> int:
    """The sliding window of every layer; 0 where the configuration says null."""
    if "sliding_window" not in config:
        return default
    return 0 if config["sliding_window"] is None else common.positive(config, "sliding_window")


FAMILY = Family(name="llama", architectures=(*common.served_as("Llama"), *common.served_as(MISTRAL)), spec=spec)
