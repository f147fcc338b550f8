"""A tokenizer for tiny models of 256 tokens: every byte is a token, and the one that no UTF-8 text has is the end."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = 255  # the byte 0xFF
SIZE = 256


def _letters() -> list[str]:
    """The byte-level alphabet of GPT-2's tokenizer (`bytes_to_unicode`): printable bytes stand for themselves."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    names = {byte: chr(byte) for byte in kept} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


@cache
def tokenizer_json() -> str:
    """The tokenizer as `tokenizers` writes it; token i is byte i."""
    vocabulary = {letter: byte for byte, letter in enumerate(_letters()) if byte != END}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, "<end>": END}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer.to_str()


def text_of(tokens: list[int]) -> str:
    """What tokens say, the end token left out."""
    return bytes(token for token in tokens if token != END).decode()
