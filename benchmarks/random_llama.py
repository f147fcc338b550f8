"""Writes a Llama of a known model's shape with random bfloat16 weights and no tokenizer: for speed, not for answers.

python benchmarks/random_llama.py smollm2|1b FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2": {  # SmolLM2-135M
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "1b": {  # TinyLlama-1.1B
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    },
}
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPREAD = 0.02


def weights(shape: dict[str, Any]) -> dict[str, Tensor]:
    """Every tensor of the checkpoint by its name."""
    hidden, inner, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    keys = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    sizes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    named = {
        f"model.layers.{i}.{name}": size for i in range(shape["num_hidden_layers"]) for name, size in sizes.items()
    }
    named |= {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,)}
    if not shape["tie_word_embeddings"]:
        named["lm_head"] = (vocab, hidden)
    return {f"{name}.weight": values(size) for name, size in named.items()}


def values(size: tuple[int, ...]) -> Tensor:
    """A norm's ones, or a product's random numbers."""
    made = torch.ones(size) if len(size) == 1 else torch.randn(size) * SPREAD
    return made.to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    args.folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[args.shape]
    (args.folder / "config.json").write_text(json.dumps(COMMON | shape, indent=2))
    save_file(weights(shape), args.folder / "model.safetensors")


if __name__ == "__main__":
    main()
