"""Mixtral: Mistral's attention, and gated MLPs of which each token goes through a few, their weights renormalized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.model import AttentionMixer, Layer, ModelSpec

from ..family import Family, WeightNames
from . import common
from .llama import window

ROPE_BASE = 1_000_000.0  # where the configuration names none, as in Transformers
BLOCK = "model.layers.{i}.block_sparse_moe"


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Mixtral configuration."""
    dim, (query, keys) = common.head_dim(config), common.heads(config)
    norm = common.norm(config, 1e-5)
    layer = Layer(
        mixer=AttentionMixer(
            num_heads=query,
            num_kv_heads=keys,
            head_dim=dim,
            scale=dim**-0.5,
            rope=common.rope(config, dim, max_positions, base=ROPE_BASE),
            sliding_window=window(config, 0),
        ),
        ffn=common.moe(config, "num_local_experts", "intermediate_size", renormalize=True),
        pre_mixer=norm,
        pre_ffn=norm,
    )
    return common.decoder(config, max_positions, (layer,) * common.positive(config, "num_hidden_layers"))


WEIGHTS = WeightNames(
    router=f"{BLOCK}.gate",
    experts=(f"{BLOCK}.experts.{{e}}.w1", f"{BLOCK}.experts.{{e}}.w3", f"{BLOCK}.experts.{{e}}.w2"),
)
FAMILY = Family(name="mixtral", architectures=("MixtralForCausalLM",), spec=spec, weights=WEIGHTS)
