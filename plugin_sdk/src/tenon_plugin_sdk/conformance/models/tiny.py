"""Tiny checkpoints of every family, made by Transformers with wide weights, and saved as it saves them.

Norm weights and biases are random too: a forgotten one must change tokens. Nothing here knows our engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
SLIDING, FULL = "sliding_attention", "full_attention"

# name -> (family, Transformers class prefix, what differs from SIZES)
TINY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "Llama", {}),
    "llama-tied-biased-llama3": (
        "llama",
        "Llama",
        {"tie_word_embeddings": True, "attention_bias": True, "rope_parameters": LLAMA3},
    ),
    "llama-mha-yarn": ("llama", "Llama", {"num_key_value_heads": 4, "rope_parameters": YARN, "head_dim": 32}),
    "mistral": ("llama", "Mistral", {"sliding_window": None}),
    "mistral-window": ("llama", "Mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", "Qwen2", {}),
    "qwen2-window": ("qwen2", "Qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    "qwen3": ("qwen3", "Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3_moe": (
        "qwen3_moe",
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
    ),
    "mixtral": ("mixtral", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma3": (
        "gemma3",
        "Gemma3Text",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
            "query_pre_attn_scalar": 40,
            "initializer_range": 0.2,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
                SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A saved checkpoint and the Transformers model it was saved from."""

    name: str
    family: str
    path: Path
    model: Any

    @property
    def config(self) -> dict[str, Any]:
        """Its config.json."""
        loaded: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return loaded


def make_tiny(name: str, folder: Path, *, seed: int = 0) -> TinyModel:
    """Make and save one of `TINY` under `folder`."""
    import torch
    import transformers

    family, prefix, changes = TINY[name]
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **changes})
    torch.manual_seed(seed)
    make = getattr(transformers, prefix.removesuffix("Text") + "ForCausalLM")
    config._experts_implementation = "eager"  # the other ways of computing experts know no float64
    model = make(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases, which are made of ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.2)
    path = folder / name
    model.save_pretrained(path)
    return TinyModel(name=name, family=family, path=path, model=model)
