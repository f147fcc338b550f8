"""Hugging Face's tensor names for a GGUF's, and what must be undone on reading so that Hugging Face's meaning holds.

- `llama` files store the rows of q and k for rotation of neighbouring pairs: undone by reordering rows, whole rows of
  blocks too, so that every model here rotates halves against each other.
- `gemma3` files store norm weights with their 1 added: taken off again.
- Experts come stacked: model.layers.N.mlp.experts.{gate_proj,up_proj,down_proj}.weight [experts, out, in].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tenon_platforms.errors import ConfigError

from .gguf_config import architecture_of
from .gguf_file import GGUFFile, GGUFTensor

ROPE_FACTORS = "rope_freqs.weight"
IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd\.weight")  # a table that is computed instead
Change = Literal["none", "unpermute", "minus_one"]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EXPERTS = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_GEMMA3 = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER: Mapping[str, Mapping[str, str]] = {
    "llama": {**_ATTENTION, **_MLP, **_EXPERTS, "ffn_gate_inp": "block_sparse_moe.gate"},
    "qwen2": {**_ATTENTION, **_MLP},
    "qwen3": {**_ATTENTION, **_QK_NORMS, **_MLP},
    "qwen3moe": {**_ATTENTION, **_QK_NORMS, **_EXPERTS, "ffn_gate_inp": "mlp.gate"},
    "gemma3": {**_ATTENTION, **_QK_NORMS, **_MLP, **_GEMMA3},
}
_OF_LAYER = re.compile(r"blk\.(\d{1,6})\.([a-z_]+)(?:\.(\d{1,6}))?\.(weight|bias)")
_OF_TOP = re.compile(r"([a-z_]+)\.(weight|bias)")
_ONE_EXPERT = {"ffn_gate": "w1", "ffn_up": "w3", "ffn_down": "w2"}  # files from before experts were stacked


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """A GGUF tensor under its Hugging Face name. change: what reading undoes."""

    name: str
    stored: GGUFTensor
    change: Change


def named_tensors(file: GGUFFile) -> dict[str, NamedTensor]:
    """Every tensor of the model by its Hugging Face name; a tensor of unknown meaning is refused."""
    architecture = architecture_of(file)
    result: dict[str, NamedTensor] = {}
    for stored in file.tensors.values():
        if stored.name == ROPE_FACTORS or IGNORED.fullmatch(stored.name):
            continue
        name = hf_name(architecture, stored.name)
        if name is None:
            raise ConfigError(f"{file.path}: tensor {stored.name!r:.200} is not known in {architecture!r} models")
        result[name] = NamedTensor(name=name, stored=stored, change=_change(architecture, stored.name))
    return result


def hf_name(architecture: str, name: str) -> str | None:
    """Hugging Face's name for a GGUF tensor of an architecture, or None."""
    if match := _OF_LAYER.fullmatch(name):
        layer, part, expert, kind = match.groups()
        if expert is not None:
            if architecture != "llama" or part not in _ONE_EXPERT or kind != "weight":
                return None
            return f"model.layers.{int(layer)}.block_sparse_moe.experts.{int(expert)}.{_ONE_EXPERT[part]}.weight"
        module = _LAYER[architecture].get(part)
        return None if module is None else f"model.layers.{int(layer)}.{module}.{kind}"
    match = _OF_TOP.fullmatch(name)
    module = None if match is None else _TOP.get(match[1])
    return None if match is None or module is None else f"{module}.{match[2]}"


def _change(architecture: str, name: str) -> Change:
    if architecture == "llama" and re.search(r"\.attn_[qk]\.", name):
        return "unpermute"
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return "minus_one"
    return "none"
