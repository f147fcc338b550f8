"""Gemma 3, text: four norms a layer that store weight - 1, normed queries and keys, scaled embeddings, tied head.

Most layers slide over a short window with a rope of their own; every sixth (or as `layer_types` says) sees everything.
Source: Gemma 3 technical report, arXiv 2503.19786.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.model import AttentionMixer, GatedMLP, Head, Layer, ModelSpec, NormSpec
from tenon_platforms.ops.rope import RopeSpec

from ..family import Family, WeightNames
from . import common

FULL, SLIDING = "full_attention", "sliding_attention"
FULL_BASE, SLIDING_BASE = 1_000_000.0, 10_000.0
PATTERN = 6  # every sixth layer sees everything


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Gemma 3 text configuration."""
    common.only(config, "use_bidirectional_attention", False)
    common.only(config, "attn_logit_softcapping")
    hidden, (query, keys) = common.positive(config, "hidden_size"), common.heads(config)
    dim = common.positive(config, "head_dim") if config.get("head_dim") is not None else 256
    norm = NormSpec(eps=common.number(config, "rms_norm_eps", 1e-6), weight_offset=1.0)
    ffn = GatedMLP(
        intermediate=common.positive(config, "intermediate_size"),
        activation=common.activation({"hidden_activation": "gelu_pytorch_tanh", **config}, "hidden_activation"),
    )
    window, bias = common.positive(config, "sliding_window"), bool(config.get("attention_bias", False))
    layers = tuple(
        Layer(
            mixer=AttentionMixer(
                num_heads=query,
                num_kv_heads=keys,
                head_dim=dim,
                scale=common.number(config, "query_pre_attn_scalar", 256.0) ** -0.5,
                rope=rope(config, dim, max_positions, slides),
                qkv_bias=bias,
                out_bias=bias,
                qk_norm=norm,
                sliding_window=window if slides else 0,
            ),
            ffn=ffn,
            pre_mixer=norm,
            pre_ffn=norm,
            post_mixer=norm,
            post_ffn=norm,
        )
        for slides in sliding_layers(config, window)
    )
    return ModelSpec(
        architecture=common.architecture(config),
        vocab_size=common.positive(config, "vocab_size"),
        hidden=hidden,
        layers=layers,
        final_norm=norm,
        head=Head(
            tied=bool(config.get("tie_word_embeddings", True)),
            soft_cap=common.number(config, "final_logit_softcapping", 0.0),
        ),
        max_positions=common.max_positions(config, max_positions),
        embedding_scale=hidden**0.5,
    )


def sliding_layers(config: Mapping[str, Any], window: int) -> list[bool]:
    """Which layers slide: `layer_types`, else all but every n-th by the pattern."""
    count, kinds = common.positive(config, "num_hidden_layers"), config.get("layer_types")
    if kinds is None:
        named = config.get("sliding_window_pattern", config.get("_sliding_window_pattern"))
        every = PATTERN if named is None else named
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(f"the model's config has sliding_window_pattern = {every!r}: expected a whole number")
        kinds = [SLIDING if (index + 1) % every else FULL for index in range(count)]
    return common.sliding_layers(kinds, count, window)


def rope(config: Mapping[str, Any], dim: int, max_positions: int, slides: bool) -> RopeSpec:
    """The rope of one kind of layer. In the old form, `rope_theta` and `rope_scaling` are the full layers'."""
    if config.get("rope_parameters"):
        kind, base = (SLIDING, SLIDING_BASE) if slides else (FULL, FULL_BASE)
        return common.rope({**config, "rope_theta": None}, dim, max_positions, base=base, kind=kind)
    if slides:
        local = {"rope_theta": config.get("rope_local_base_freq"), "rope_scaling": None}
        return common.rope({**config, **local}, dim, max_positions, base=SLIDING_BASE)
    return common.rope(config, dim, max_positions, base=FULL_BASE)


WEIGHTS = WeightNames(
    pre_ffn="model.layers.{i}.pre_feedforward_layernorm",
    post_mixer="model.layers.{i}.post_attention_layernorm",
    post_ffn="model.layers.{i}.post_feedforward_layernorm",
)
FAMILY = Family(name="gemma3", architectures=("Gemma3ForCausalLM",), spec=spec, weights=WEIGHTS)
