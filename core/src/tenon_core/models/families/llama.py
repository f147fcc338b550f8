"""Llama, Mistral and what is built like them: pre-norm, grouped-query attention, gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.model import AttentionMixer, GatedMLP, Head, Layer, ModelSpec, NormSpec

from ..family import Family
from . import common


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Llama-like configuration."""
    dim = common.head_dim(config)
    norm = NormSpec(eps=float(config.get("rms_norm_eps", 1e-6)))
    layer = Layer(
        mixer=AttentionMixer(
            num_heads=common.positive(config, "num_attention_heads"),
            num_kv_heads=int(config.get("num_key_value_heads") or common.positive(config, "num_attention_heads")),
            head_dim=dim,
            scale=dim**-0.5,
            rope=common.rope(config, dim, max_positions),
            qkv_bias=bool(config.get("attention_bias", False)),
            out_bias=bool(config.get("attention_bias", False)),
            sliding_window=int(config.get("sliding_window") or 0),
        ),
        ffn=GatedMLP(intermediate=common.positive(config, "intermediate_size"), activation=common.activation(config)),
        pre_mixer=norm,
        pre_ffn=norm,
    )
    return ModelSpec(
        architecture=common.architecture(config),
        vocab_size=common.positive(config, "vocab_size"),
        hidden=common.positive(config, "hidden_size"),
        layers=(layer,) * common.positive(config, "num_hidden_layers"),
        final_norm=norm,
        head=Head(tied=bool(config.get("tie_word_embeddings", False))),
        max_positions=int(config.get("max_position_embeddings") or max_positions),
    )


FAMILY = Family(name="llama", architectures=("LlamaForCausalLM", "MistralForCausalLM"), spec=spec)
