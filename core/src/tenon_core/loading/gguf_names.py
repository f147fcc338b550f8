"""A GGUF presented as a Hugging Face checkpoint: its configuration, its tensors' names, and what must be undone.

Three things differ beyond names. `llama` files store q and k for interleaved rope: their rows are put back in halves.
Gemma files store norms with one already added: it is taken off. Experts are stacked in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.formats.gguf_types import BY_NAME

from .gguf_file import GGUFFile, GGUFTensor
from .tensors import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

_GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MIXTRAL_LAYER = _LAYER | {"ffn_gate_inp": "block_sparse_moe.gate"}
_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Architecture:
    """How one GGUF architecture maps. permuted: q and k rows are interleaved; plus_one: norms have one added."""

    name: str
    layer: dict[str, str]
    permuted: bool = False
    plus_one: bool = False


_ARCHITECTURES = {
    "llama": _Architecture(name="LlamaForCausalLM", layer=_LAYER, permuted=True),
    "mixtral": _Architecture(name="MixtralForCausalLM", layer=_MIXTRAL_LAYER, permuted=True),
    "qwen2": _Architecture(name="Qwen2ForCausalLM", layer=_LAYER),
    "qwen3": _Architecture(name="Qwen3ForCausalLM", layer=_LAYER),
    "qwen3moe": _Architecture(name="Qwen3MoeForCausalLM", layer=_LAYER),
    "gemma3": _Architecture(name="Gemma3ForCausalLM", layer=_GEMMA_LAYER, plus_one=True),
}


class GGUFSource:
    """A GGUF file's tensors under Hugging Face names."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._architecture = _architecture(file)
        heads = _metadata(file, "attention.head_count"), _metadata(file, "attention.head_count_kv")
        self._heads = {"q_proj": int(heads[0] or 0), "k_proj": int(heads[1] or heads[0] or 0)}
        self._tensors: dict[str, GGUFTensor] = {}
        for tensor in file.tensors.values():
            if tensor.name != _ROPE_FACTORS:
                self._tensors[self._name_of(tensor.name)] = tensor

    def names(self) -> Iterable[str]:
        return self._tensors

    def info(self, name: str) -> TensorInfo:
        tensor = self._tensors[name]
        dtype = BY_NAME[tensor.type_name].dtype
        return TensorInfo(
            name=name,
            shape=tensor.shape,
            num_bytes=tensor.num_bytes,
            dtype=dtype,
            gguf_type=None if dtype is not None else tensor.type_name,
        )

    def read(self, name: str) -> Tensor:
        raw = read_tensor(self._file, self._tensors[name])
        return self._undo(name)(raw)

    def close(self) -> None:
        self._file.close()

    def _name_of(self, name: str) -> str:
        stem, _, suffix = name.rpartition(".")
        if stem in _GLOBAL:
            return f"{_GLOBAL[stem]}.{suffix}"
        block, _, rest = stem.removeprefix("blk.").partition(".")
        if stem.startswith("blk.") and block.isdigit() and rest in self._architecture.layer:
            return f"model.layers.{block}.{self._architecture.layer[rest]}.{suffix}"
        return name

    def _undo(self, name: str) -> Callable[[Tensor], Tensor]:
        part = name.split(".")[-2]
        if self._architecture.permuted and part in self._heads:
            heads = self._heads[part]
            return lambda rows: rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        if self._architecture.plus_one and part.endswith("norm"):
            return lambda weight: weight - 1
        return lambda tensor: tensor


def read_tensor(file: GGUFFile, tensor: GGUFTensor) -> Tensor:
    """A tensor over the map: plain elements in their shape, blocks as uint8 [..., rows, bytes of a row]."""
    import warnings

    import torch

    from tenon_platforms.torch_dtypes import to_torch

    kind = BY_NAME[tensor.type_name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        data = torch.frombuffer(file.data, dtype=torch.uint8, count=tensor.num_bytes, offset=tensor.offset)
    if kind.dtype is not None:
        return data.view(to_torch(kind.dtype)).view(tensor.shape)
    return data.view(*tensor.shape[:-1], tensor.shape[-1] // kind.elements * kind.bytes)


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The file's metadata as a config.json. Raises `ConfigError` for an architecture or value that is not known."""
    architecture = _architecture(file)
    hidden, heads = _count(file, "embedding_length"), _count(file, "attention.head_count")
    key_length = _metadata(file, "attention.key_length")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path} has no tensor token_embd.weight")
    config: dict[str, Any] = {
        "architectures": [architecture.name],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": _count(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_metadata(file, "attention.head_count_kv") or heads),
        "head_dim": int(key_length or hidden // heads),
        "intermediate_size": int(_metadata(file, "feed_forward_length") or 0),
        "rms_norm_eps": float(_metadata(file, "attention.layer_norm_rms_epsilon") or 1e-6),
        "rope_theta": float(_metadata(file, "rope.freq_base") or 10000.0),
        "max_position_embeddings": _count(file, "context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    config |= _special(file, architecture)
    if scaling := _rope_scaling(file):
        config["rope_scaling"] = scaling
    return config


def _special(file: GGUFFile, architecture: _Architecture) -> dict[str, Any]:
    """What only some architectures say."""
    extra: dict[str, Any] = {}
    if architecture.name == "Qwen2ForCausalLM":
        extra["attention_bias"] = True
    if architecture.name == "Gemma3ForCausalLM":
        extra |= {
            "sliding_window": int(_metadata(file, "attention.sliding_window") or 0),
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": int(_metadata(file, "attention.key_length") or 256),
            "hidden_activation": "gelu_pytorch_tanh",
        }
    if experts := _metadata(file, "expert_count"):
        extra["num_experts_per_tok"] = _count(file, "expert_used_count")
        if architecture.name == "MixtralForCausalLM":
            extra["num_local_experts"] = int(experts)
        else:
            extra |= {
                "num_experts": int(experts),
                "moe_intermediate_size": _count(file, "expert_feed_forward_length"),
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
    return extra


def _rope_scaling(file: GGUFFile) -> dict[str, Any] | None:
    factors = file.tensors.get(_ROPE_FACTORS)
    if factors is not None:
        return {"rope_type": "factors", "factors": read_tensor(file, factors).float().tolist()}
    kind = _metadata(file, "rope.scaling.type") or "none"
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": float(_metadata(file, "rope.scaling.factor") or 1.0)}
    if original := _metadata(file, "rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = int(original)
    return scaling


def _architecture(file: GGUFFile) -> _Architecture:
    name = str(file.metadata.get("general.architecture", ""))
    if name == "llama" and file.metadata.get("llama.expert_count"):
        name = "mixtral"
    if name not in _ARCHITECTURES:
        known = ", ".join(sorted(set(_ARCHITECTURES) - {"mixtral"}))
        raise ConfigError(f"{file.path} holds the architecture {name!r}: supported in GGUF files are {known}")
    return _ARCHITECTURES[name]


def _metadata(file: GGUFFile, key: str) -> Any:
    return file.metadata.get(f"{file.metadata.get('general.architecture')}.{key}")


def _count(file: GGUFFile, key: str) -> int:
    value = _metadata(file, key)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigError(f"{file.path}: metadata {key!r} is {value!r}: expected a whole number above 0")
    return value
