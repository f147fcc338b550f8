"""A family: from a configuration to a `ModelSpec`, and the names its weights have. Torch-free.

Names are Hugging Face's; `{i}` is the layer and `{e}` the expert. Loaders of other formats present their tensors
under these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tenon_platforms.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Name patterns of a decoder's tensors. A pattern names the module; `.weight` and `.bias` are appended.

    sinks: the tensor itself, [heads], of models whose attention has sinks (GPT-OSS's name for it).
    experts: (gate, up, down) of one expert; stacked_experts: the same as [experts, out, in] tensors, tried second.
    """

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    q: str = "model.layers.{i}.self_attn.q_proj"
    k: str = "model.layers.{i}.self_attn.k_proj"
    v: str = "model.layers.{i}.self_attn.v_proj"
    out: str = "model.layers.{i}.self_attn.o_proj"
    q_norm: str = "model.layers.{i}.self_attn.q_norm"
    k_norm: str = "model.layers.{i}.self_attn.k_norm"
    sinks: str = "model.layers.{i}.self_attn.sinks"
    gate: str = "model.layers.{i}.mlp.gate_proj"
    up: str = "model.layers.{i}.mlp.up_proj"
    down: str = "model.layers.{i}.mlp.down_proj"
    router: str = "model.layers.{i}.mlp.gate"
    experts: tuple[str, str, str] = (
        "model.layers.{i}.mlp.experts.{e}.gate_proj",
        "model.layers.{i}.mlp.experts.{e}.up_proj",
        "model.layers.{i}.mlp.experts.{e}.down_proj",
    )
    stacked_experts: tuple[str, str, str] = (
        "model.layers.{i}.mlp.experts.gate_proj",
        "model.layers.{i}.mlp.experts.up_proj",
        "model.layers.{i}.mlp.experts.down_proj",
    )
    pre_mixer: str = "model.layers.{i}.input_layernorm"
    pre_ffn: str = "model.layers.{i}.post_attention_layernorm"
    post_mixer: str = ""
    post_ffn: str = ""
    first_norm: str = ""  # of the embedding, where norms act after the addition; `{p}` is the layer before `{i}`
    mlp_up: str = ""
    mlp_down: str = ""
    positions: str = ""
    token_types: str = ""
    head_layers: tuple[str, ...] = ()

    def at(self, layer: int) -> WeightNames:
        """The patterns with this layer's number in place; experts keep `{e}`."""
        place, before = str(layer), str(layer - 1)

        def fill(pattern: Any) -> Any:
            return (
                tuple(map(fill, pattern))
                if isinstance(pattern, tuple)
                else pattern.replace("{i}", place).replace("{p}", before)
            )

        return WeightNames(**{item.name: fill(getattr(self, item.name)) for item in fields(self)})


def decoder_name(stored: str) -> str:
    """A decoder saved without its head (`Qwen3Model`) has no "model." before its names."""
    bare = stored.startswith(("embed_tokens.", "layers.", "norm."))
    return f"model.{stored}" if bare else stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model family. `spec(config, max_positions)` reads a plain dict; `config` is a config.json's content.

    architectures: the names in `config["architectures"]` that it serves. rename: from a name as stored to the one in
    `weights`, for checkpoints saved from another class of the same model. context: the longest context, where it is
    another number than `max_position_embeddings`. names_of: `weights` of one checkpoint, where configurations differ.
    """

    name: str
    architectures: tuple[str, ...]
    spec: Callable[[Mapping[str, Any], int], ModelSpec]
    weights: WeightNames = field(default_factory=WeightNames)
    rename: Callable[[str], str] = decoder_name
    context: Callable[[Mapping[str, Any]], int] | None = None
    names_of: Callable[[Mapping[str, Any]], WeightNames] | None = None

    def names(self, config: Mapping[str, Any]) -> WeightNames:
        """The weights' names of one checkpoint."""
        return self.weights if self.names_of is None else self.names_of(config)
