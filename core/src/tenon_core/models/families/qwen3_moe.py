"""Qwen 3 with experts in every layer. Models that mix dense layers in are refused: none is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_platforms.model import Layer, ModelSpec

from ..family import Family
from . import common
from .qwen2 import used_window
from .qwen3 import mixer


def spec(config: Mapping[str, Any], max_positions: int) -> ModelSpec:
    """The `ModelSpec` of a Qwen 3 MoE configuration."""
    common.only(config, "mlp_only_layers", [], ())
    common.only(config, "decoder_sparse_step", 1)
    # Transformers 5 writes `num_experts` as `num_local_experts`
    norm, experts = common.norm(config), "num_local_experts" if config.get("num_experts") is None else "num_experts"
    layer = Layer(
        mixer=mixer(config, max_positions, used_window(config)),
        ffn=common.moe(config, experts, "moe_intermediate_size", renormalize=bool(config.get("norm_topk_prob", False))),
        pre_mixer=norm,
        pre_ffn=norm,
    )
    return common.decoder(config, max_positions, (layer,) * common.positive(config, "num_hidden_layers"))


FAMILY = Family(name="qwen3_moe", architectures=("Qwen3MoeForCausalLM",), spec=spec)
