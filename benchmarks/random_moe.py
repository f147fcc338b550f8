"""Writes a Qwen3-MoE of random Q4_1 blocks as a GGUF file, with the tokenizer of another: for speed, not for answers.

    python benchmarks/random_moe.py TOKENIZER.gguf MOE.gguf

32 experts, 8 of which a token goes through (granite-3.0-1b-a400m's), 12 layers: 0.7 billion parameters, 0.2 of a token.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, DIM = 1024, 12, 16, 4, 64
EXPERTS, TOP_K, INNER = 32, 8, 512
BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("codes", "u1", 16)])  # of 32 values
KIND = gguf.GGMLQuantizationType.Q4_1
SPREAD = 0.02


def blocks(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Weights [..., columns] of that spread around zero, as bytes."""
    count = int(np.prod(shape)) // 32
    made = np.empty(count, BLOCK)
    made["d"], made["m"] = SPREAD / 4.6, -7.5 * SPREAD / 4.6
    made["codes"] = rng.integers(0, 256, (count, 16), dtype=np.uint8)
    return made.view(np.uint8).reshape(*shape[:-1], shape[-1] // 32 * BLOCK.itemsize)


def copy_tokenizer(writer: gguf.GGUFWriter, source: gguf.GGUFReader) -> int:
    """Every field of the tokenizer; the number of its tokens."""
    count = 0
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value: Any = field.contents()
        sub_type = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, value, field.types[0], sub_type)
        if name == "tokenizer.ggml.tokens":
            count = len(value)
    return count


def add_settings(writer: gguf.GGUFWriter) -> None:
    """Hyperparameters, as GGUF's qwen3moe names them."""
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(DIM)
    writer.add_value_length(DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_expert_feed_forward_length(INNER)


def add_layer(writer: gguf.GGUFWriter, rng: np.random.Generator, layer: int) -> None:
    """One layer's tensors."""
    sizes = {
        "attn_q": (HEADS * DIM, HIDDEN), "attn_k": (KV_HEADS * DIM, HIDDEN), "attn_v": (KV_HEADS * DIM, HIDDEN),
        "attn_output": (HIDDEN, HEADS * DIM), "ffn_gate_exps": (EXPERTS, INNER, HIDDEN),
        "ffn_up_exps": (EXPERTS, INNER, HIDDEN), "ffn_down_exps": (EXPERTS, HIDDEN, INNER),
    }  # fmt: skip
    for name, size in sizes.items():
        writer.add_tensor(f"blk.{layer}.{name}.weight", blocks(rng, *size), raw_dtype=KIND)
    for name, width in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", DIM), ("attn_k_norm", DIM)):
        writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
    router = rng.standard_normal((EXPERTS, HIDDEN)).astype(np.float32) * SPREAD
    writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="a GGUF file whose tokenizer is taken")
    parser.add_argument("file", type=Path, help="the GGUF file to write")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(args.file, "qwen3moe")
    add_settings(writer)
    vocab = copy_tokenizer(writer, gguf.GGUFReader(args.tokenizer))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tensor("token_embd.weight", blocks(rng, vocab, HIDDEN), raw_dtype=KIND)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        add_layer(writer, rng, layer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
