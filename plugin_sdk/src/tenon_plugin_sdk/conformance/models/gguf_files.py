"""GGUF files of tiny Hugging Face checkpoints, as llama.cpp's converter writes them; nothing here knows our reader.

Names come from the gguf package's own table. What the converter changes is done here the same way: q and k rows of
`llama` models interleaved, Gemma's norms plus one, experts stacked. K-quants, which the package cannot write, are
random blocks; the weights that a file means come back dequantized, so that a reference can be made from them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import quants

from .tiny import SIZES

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MistralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
}
EXPERTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
SLIDING, FULL = "sliding_attention", "full_attention"
# name -> (Transformers class prefix, what differs from SIZES): one for each architecture that GGUF files are read of
TINY_GGUF: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3moe": (
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
            "query_pre_attn_scalar": 32,
            "initializer_range": 0.2,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
                SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "wide-llama": ("Llama", {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyGGUF:
    """A GGUF file, the tensors it means by their Hugging Face names, and the config.json it came from."""

    path: Path
    tensors: dict[str, np.ndarray]
    config: dict[str, Any]


def make_folder(name: str, folder: Path) -> Path:
    """A saved checkpoint of one of `TINY_GGUF`."""
    import torch
    import transformers

    prefix, changes = TINY_GGUF[name]
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **changes})
    torch.manual_seed(3)
    model = getattr(transformers, prefix.removesuffix("Text") + "ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases, which are made of ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.2)
    path = folder / name
    model.save_pretrained(path)
    return path


def load_reference(path: Path) -> Any:
    """The Transformers model of a saved folder, in float32."""
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype="float32", experts_implementation="eager"
    )
    return model.eval()


def write_gguf(folder: Path, path: Path, *, kind: str = "F32", tokens: list[str] | None = None) -> TinyGGUF:
    """Write a saved checkpoint's GGUF; kind: of its matrices."""
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[architecture])
    _write_keys(writer, config)
    _write_tokens(writer, tokens or [f"t{index}" for index in range(config["vocab_size"])])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    meant: dict[str, np.ndarray] = {}
    for name, values in _stacked(load_file(folder / "model.safetensors")).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        meant[name] = _write_tensor(writer, stored, _converted(name, values, config), kind)
        meant[name] = _original(name, meant[name], config)
    if (factors := _rope_factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyGGUF(path=path, tensors=meant, config=config)


def save_meant(tiny: TinyGGUF, folder: Path) -> Path:
    """A Hugging Face checkpoint of what the GGUF means."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(tiny.config))
    save_file(unstacked(tiny), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def unstacked(tiny: TinyGGUF) -> dict[str, np.ndarray]:
    """Its tensors with experts one by one, named as the checkpoint names them."""
    result = {}
    is_mixtral = tiny.config["architectures"] == ["MixtralForCausalLM"]
    for name, values in tiny.tensors.items():
        match = re.fullmatch(r"(model\.layers\.\d+)\.mlp\.experts\.(\w+)\.weight", name)
        if match is None:
            result[name] = values
            continue
        short = {long: short for short, long in EXPERTS.items()}[match[2]]
        for index, expert in enumerate(values):
            part = f"block_sparse_moe.experts.{index}.{short}" if is_mixtral else f"mlp.experts.{index}.{match[2]}"
            result[f"{match[1]}.{part}.weight"] = np.ascontiguousarray(expert)
    return result


def _stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    experts: dict[str, dict[int, np.ndarray]] = {}
    result = {}
    for name, values in tensors.items():
        match = re.fullmatch(r"(model\.layers\.\d+)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)\.weight", name)
        if match is None:
            result[name] = values
        else:
            part = EXPERTS.get(match[3], match[3])
            experts.setdefault(f"{match[1]}.mlp.experts.{part}.weight", {})[int(match[2])] = values
    return result | {name: np.stack([parts[i] for i in sorted(parts)]) for name, parts in experts.items()}


def _heads_of(name: str, config: dict[str, Any]) -> int | None:
    """The heads whose rows are interleaved, for q and k of a llama architecture."""
    if ARCHITECTURES[config["architectures"][0]] is not gguf.MODEL_ARCH.LLAMA:
        return None
    if ".q_proj." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".k_proj." in name else None


def _converted(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    """As the converter changes it (LlamaModel.permute; Gemma's norm_shift)."""
    heads = _heads_of(name, config)
    if heads is not None:
        return (
            values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            .swapaxes(1, 2)
            .reshape(values.shape)
        )
    return values + 1 if _is_gemma(config) and name.endswith("norm.weight") else values


def _original(name: str, values: np.ndarray, config: dict[str, Any]) -> Any:
    heads = _heads_of(name, config)
    if heads is not None:
        return (
            values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
            .swapaxes(1, 2)
            .reshape(values.shape)
        )
    return values - 1 if _is_gemma(config) and name.endswith("norm.weight") else values


def _is_gemma(config: dict[str, Any]) -> bool:
    return bool(config["architectures"] == ["Gemma3ForCausalLM"])


def _write_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> np.ndarray:
    """Write one tensor; returns the values it then has. Vectors and routers stay float32, as the converter's do."""
    if values.ndim == 1 or "ffn_gate_inp" in name or kind == "F32":
        writer.add_tensor(name, values.astype(np.float32))
        return values.astype(np.float32)
    number = gguf.GGMLQuantizationType[kind]
    if kind == "F16":
        writer.add_tensor(name, values.astype(np.float16))
        return values.astype(np.float16).astype(np.float32)
    blocks = _random_k_blocks(values.shape, kind, name) if kind.endswith("_K") else quants.quantize(values, number)
    writer.add_tensor(name, blocks, raw_dtype=number)
    return quants.dequantize(blocks, number).astype(np.float32)


def _random_k_blocks(shape: tuple[int, ...], kind: str, name: str) -> np.ndarray:
    """Random blocks of about zero mean."""
    number = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[number]
    random = np.random.default_rng(sum(name.encode()))
    blocks = random.integers(0, 256, (int(np.prod(shape)) // elements, size), dtype=np.uint8)
    halves = {"Q4_K": {0: 4e-4, 2: 3e-3}, "Q5_K": {0: 2e-4, 2: 3.1e-3}, "Q6_K": {208: 5e-5}}[kind]
    for at, value in halves.items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def _write_keys(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    rope = config["rope_parameters"]
    rope = rope.get(FULL, rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if experts := config.get("num_local_experts") or config.get("num_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if _is_gemma(config):
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == SLIDING for kind in config["layer_types"]])


def _rope_factors(config: dict[str, Any]) -> np.ndarray | None:
    """rope_freqs.weight of llama3 scaling (LlamaModel.generate_extra_tensors)."""
    rope = config["rope_parameters"]
    if rope.get("rope_type") != "llama3":
        return None
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1.0 / (rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float64) / dim))
    lengths, original = 2 * np.pi / frequencies, rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (original / lengths - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors = np.where(lengths < original / high, 1.0, np.where(lengths > original / low, rope["factor"], between))
    return factors.astype(np.float32)


def _write_tokens(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([])
    writer.add_eos_token_id(2)
