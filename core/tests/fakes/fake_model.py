"""A byte-level tokenizer and a model folder without weights: token id = byte, then a few control tokens."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tenon_core.client.detokenizer import byte_of_letter

CONTROL = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>")  # ids 256, 257, 258, 259
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if shout %}!{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(more_control: tuple[str, ...] = ()) -> Tokenizer:
    """256 bytes and the control tokens."""
    tokenizer = Tokenizer(models.BPE(vocab=dict(byte_of_letter()), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in (*CONTROL, *more_control)])
    return tokenizer


def spelled_tokenizer() -> Tokenizer:
    """A SentencePiece-like vocabulary: words with a mark for spaces, bytes as a fallback."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefghij", "\u2581a", "\u2581b", "ab"]
    vocabulary = {word: index for index, word in enumerate(words)}
    model = models.BPE(
        vocab=vocabulary, merges=[("\u2581", "a"), ("\u2581", "b"), ("a", "b")], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    from tokenizers import normalizers

    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_tokens([AddedToken("</s>", special=True, normalized=False)])
    return tokenizer


def model_folder(path: Path, *, template: str | None = TEMPLATE, more_control: tuple[str, ...] = ()) -> Path:
    """A folder that a front end can open. more_control: further control tokens, ids from 260."""
    path.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 270}
    (path / "config.json").write_text(json.dumps(config))
    byte_tokenizer(more_control).save(str(path / "tokenizer.json"))
    tokenizer_config: dict[str, object] = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    if template is not None:
        tokenizer_config["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return path
