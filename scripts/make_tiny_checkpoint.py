"""Writes a tiny random Llama with a byte tokenizer and a chat template: `make_tiny_checkpoint.py FOLDER`.

A whole checkpoint as the hub has them (config, safetensors, tokenizer), of some hundred kilobytes, the same at every
run. For smoke tests: its answers mean nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
END = "<|end|>"


def write_tokenizer(folder: Path) -> int:
    """A byte-level tokenizer with no merges; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    size: int = tokenizer.get_vocab_size()
    return size


def write_model(folder: Path, vocab_size: int) -> None:
    """Two layers of random weights in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=vocab_size - 1,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description="Write a tiny random checkpoint.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, write_tokenizer(folder))
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
