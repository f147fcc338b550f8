"""A GGUF's metadata as the config.json that Hugging Face would ship for the same model.

Only the architectures that our families serve. What a file may leave out has llama.cpp's default; a value that makes
no model (no heads, lists that differ per layer) is refused by its key. `rope_freqs.weight` is handed in as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.formats.gguf_types import BY_NAME

from .gguf_file import GGUFFile

MAX_SIZE = 1 << 31
GEMMA3_BASE, GEMMA3_LOCAL_BASE = 1_000_000.0, 10_000.0
GEMMA3_PATTERN = 6
GEMMA3_27B_LAYERS = 62  # the one size whose queries are scaled by hidden / heads instead of the head's dims


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed access to the keys of one architecture."""

    file: GGUFFile
    prefix: str

    def get(self, key: str) -> Any:
        return self.file.metadata.get(f"{self.prefix}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number above 0. A list that says the same for every layer counts as one number."""
        value = self.get(key)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MAX_SIZE:
            raise self._wrong(key, value, "a whole number above 0")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self._wrong(key, value, "a number above 0")
        return float(value)

    def _wrong(self, key: str, value: Any, expected: str) -> ConfigError:
        found = "is missing" if value is None else f"is {value!r:.200}"
        return ConfigError(f"{self.file.path}: {self.prefix}.{key} {found}: expected {expected}")


def architecture_of(file: GGUFFile) -> str:
    """`general.architecture`, one of those served."""
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ConfigError(
            f"{file.path} holds a model of the GGUF architecture {name!r:.80}, which is not supported: supported are"
            f" {', '.join(ARCHITECTURES)}",
            remedy="use another model, or its safetensors checkpoint where its architecture is served",
        )
    return str(name)


def hf_config(file: GGUFFile, rope_factors: Sequence[float] | None = None) -> dict[str, Any]:
    """The config.json of `file`. rope_factors: the values of its rope_freqs.weight, where it has one."""
    name = architecture_of(file)
    keys = _Keys(file, name)
    heads, hidden = keys.whole("attention.head_count"), keys.whole("embedding_length")
    if keys.get("attention.key_length") is None and hidden % heads:
        raise ConfigError(
            f"{file.path}: {name}.attention.head_count is {heads}, which does not divide the embedding_length {hidden}"
        )
    head_dim = keys.whole("attention.key_length", hidden // heads)
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": _layers(keys),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.whole("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "vocab_size": _rows(file, "token_embd.weight"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_theta": keys.real("rope.freq_base", 10_000.0),
        **_rope_scaling(keys, rope_factors),
        **_token_ids(file),
    }
    if keys.whole("attention.value_length", head_dim) != head_dim:
        raise ConfigError(f"{file.path}: {name}.attention.value_length differs from the {head_dim} dims of a key")
    rotary = keys.whole("rope.dimension_count", head_dim)
    if rotary != head_dim:
        config["partial_rotary_factor"] = rotary / head_dim
    stored = file.tensors.get("blk.0.attn_q.weight")
    dtype = None if stored is None else BY_NAME[stored.type_name].dtype
    if dtype is not None:
        config["dtype"] = dtype.value
    return config | ARCHITECTURES[name](keys)


def _rows(file: GGUFFile, tensor: str) -> int:
    found = file.tensors.get(tensor)
    if found is None or len(found.shape) != 2:
        raise ConfigError(f"{file.path} has no two-dimensional tensor {tensor!r}: it holds no whole model")
    return found.shape[0]


def _layers(keys: _Keys) -> int:
    """`block_count`, which the tensors must bear out before anything is made per layer."""
    count = keys.whole("block_count")
    for name in (f"blk.{count - 1}.attn_norm.weight", f"blk.{count}.attn_norm.weight"):
        if (name in keys.file.tensors) != (name == f"blk.{count - 1}.attn_norm.weight"):
            raise ConfigError(f"{keys.file.path}: {keys.prefix}.block_count is {count}, which its tensors contradict")
    return count


def _token_ids(file: GGUFFile) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {key: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {key: value for key, value in found.items() if value is not None}


def _rope_scaling(keys: _Keys, factors: Sequence[float] | None) -> dict[str, Any]:
    kind = keys.get("rope.scaling.type")
    if factors is not None:
        if kind not in (None, "none"):
            raise ConfigError(f"{keys.file.path} has both rope_freqs.weight and rope scaling {kind!r:.80}")
        return {"rope_scaling": {"rope_type": "factors", "factors": list(factors)}}
    if kind is None and keys.get("rope.scale_linear") is not None:  # the key's name before scaling had kinds
        return {"rope_scaling": {"rope_type": "linear", "factor": keys.real("rope.scale_linear")}}
    if kind in (None, "none"):
        return {}
    scaling: dict[str, Any] = {"rope_type": str(kind), "factor": keys.real("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.whole("rope.scaling.original_context_length")
        for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if keys.get(f"rope.scaling.{key}") is not None:
                scaling[name] = keys.real(f"rope.scaling.{key}")
        if keys.get("rope.scaling.attn_factor") is not None:  # times the usual one, which Hugging Face's key replaces
            usual = 0.1 * math.log(max(scaling["factor"], 1.0)) + 1.0
            scaling["attention_factor"] = keys.real("rope.scaling.attn_factor") * usual
    return {"rope_scaling": scaling}


def _dense(keys: _Keys) -> dict[str, Any]:
    return {"intermediate_size": keys.whole("feed_forward_length"), "hidden_act": "silu"}


def _llama(keys: _Keys) -> dict[str, Any]:
    """Llama, Mistral (which GGUF does not tell apart) and, with experts, Mixtral."""
    tensors = keys.file.tensors
    if keys.get("expert_count"):
        return _dense(keys) | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": keys.whole("expert_count"),
            "num_experts_per_tok": keys.whole("expert_used_count"),
            "sliding_window": None,
        }
    return _dense(keys) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }


def _qwen2(keys: _Keys) -> dict[str, Any]:
    return _dense(keys) | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": False,
    }


def _qwen3(keys: _Keys) -> dict[str, Any]:
    return _dense(keys) | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": "blk.0.attn_q.bias" in keys.file.tensors,
        "use_sliding_window": False,
    }


def _qwen3_moe(keys: _Keys) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in keys.file.tensors,
        "use_sliding_window": False,
        "num_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        "norm_topk_prob": True,  # llama.cpp renormalizes for this architecture; no key says so
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }


def _gemma3(keys: _Keys) -> dict[str, Any]:
    layers, hidden = _layers(keys), keys.whole("embedding_length")
    heads = keys.whole("attention.head_count")
    head_dim = keys.whole("attention.key_length", 256)
    result: dict[str, Any] = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "intermediate_size": keys.whole("feed_forward_length"),
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": head_dim,
        "query_pre_attn_scalar": hidden // heads if layers == GEMMA3_27B_LAYERS else head_dim,
        "sliding_window": keys.whole("attention.sliding_window"),
        "layer_types": _layer_types(keys, layers),
        "rope_theta": keys.real("rope.freq_base", GEMMA3_BASE),
        "rope_local_base_freq": keys.real("rope.freq_base_swa", GEMMA3_LOCAL_BASE),
    }
    if keys.get("final_logit_softcapping"):
        result["final_logit_softcapping"] = keys.real("final_logit_softcapping")
    return result


def _layer_types(keys: _Keys, layers: int) -> list[str]:
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != layers:
            raise ConfigError(
                f"{keys.file.path}: {keys.prefix}.attention.sliding_window_pattern has {len(pattern)} entries for"
                f" {layers} layers"
            )
        slides = [bool(one) for one in pattern]
    else:
        every = keys.whole("attention.sliding_window_pattern", GEMMA3_PATTERN)
        slides = [bool((index + 1) % every) for index in range(layers)]
    return ["sliding_attention" if one else "full_attention" for one in slides]


ARCHITECTURES: Mapping[str, Callable[[_Keys], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma3": _gemma3,
}
