"""A model family from outside: `ToyForCausalLM`, whose config.json and tensors have names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_core.models.family import Family, WeightNames
from tenon_platforms.model import AttentionMixer, GatedMLP, Head, Layer, ModelSpec, NormSpec
from tenon_platforms.ops.rope import RopeSpec


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """From a toy configuration: width, depth, heads, kv_heads, ffn, vocabulary, eps, theta."""
    norm, dim = NormSpec(eps=config["eps"]), config["width"] // config["heads"]
    mixer = AttentionMixer(
        num_heads=config["heads"],
        num_kv_heads=config["kv_heads"],
        head_dim=dim,
        scale=dim**-0.5,
        rope=RopeSpec(head_dim=dim, rotary_dim=dim, base=config["theta"], max_positions=max_positions),
    )
    ffn = GatedMLP(intermediate=config["ffn"], activation="silu")
    return ModelSpec(
        architecture="ToyForCausalLM",
        vocab_size=config["vocabulary"],
        hidden=config["width"],
        layers=(Layer(mixer=mixer, ffn=ffn, pre_mixer=norm, pre_ffn=norm),) * config["depth"],
        final_norm=norm,
        head=Head(),
        max_positions=max_positions,
    )


NAMES = WeightNames(
    embedding="toy.words",
    final_norm="toy.last_norm",
    head="toy.logits",
    q="toy.{i}.query",
    k="toy.{i}.key",
    v="toy.{i}.value",
    out="toy.{i}.mix",
    gate="toy.{i}.gate",
    up="toy.{i}.up",
    down="toy.{i}.down",
    pre_mixer="toy.{i}.norm_1",
    pre_ffn="toy.{i}.norm_2",
)
FAMILY = Family(name="toy", architectures=("ToyForCausalLM",), spec=spec, weights=NAMES)
