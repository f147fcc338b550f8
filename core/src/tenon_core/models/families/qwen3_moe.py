"""Qwen 3 with experts in every layer. Models that mix dense layers in are refused: none is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.model import Layer, ModelSpec, MoE

from ..family import Family
from . import common
from .qwen2 import used_window
from .qwen3 import mixer


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Qwen 3 MoE configuration."""
    common.only(config, "mlp_only_layers", [], ())
    common.only(config, "decoder_sparse_step", 1)
    norm, experts = common.norm(config), expert_count(config)
    layer = Layer(
        mixer=mixer(config, max_positions, used_window(config)),
        ffn=MoE(
            intermediate=common.positive(config, "moe_intermediate_size"),
            num_experts=experts,
            top_k=common.top_k(config, experts),
            renormalize=bool(config.get("norm_topk_prob", False)),
            activation=common.activation(config),
        ),
        pre_mixer=norm,
        pre_ffn=norm,
    )
    return common.decoder(config, max_positions, (layer,) * common.positive(config, "num_hidden_layers"))


def expert_count(config: Mapping[str, Any]) -> int:
    """`num_experts`, which Transformers 5 writes as `num_local_experts`."""
    return common.positive(config, "num_local_experts" if config.get("num_experts") is None else "num_experts")


FAMILY = Family(name="qwen3_moe", architectures=("Qwen3MoeForCausalLM",), spec=spec)
