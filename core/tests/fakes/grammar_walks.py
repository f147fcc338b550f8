"""A small vocabulary for grammars, and walks over them: what is allowed, what is a whole output, a random one."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tenon_core.sampling.grammar import Grammar, Vocabulary

END = 0
MAX_TOKENS = 120
PIECES = ("true", "false", "null", '"foo"', '"bar"', '": ', "10", "aaa", "}]", '","', "[{", " \n")


@cache
def vocabulary(backend: str = "guidance") -> tuple[Vocabulary, list[bytes]]:
    """Every printable ASCII character, some UTF-8 bytes, and pieces that cross a grammar's boundaries."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    wholes = ["".join(part for part, _ in level.pre_tokenize_str(piece)) for piece in PIECES]
    merges = list(dict.fromkeys((one[:cut], one[cut]) for one in wholes for cut in range(1, len(one))))
    names = list(dict.fromkeys(["<end>", *letters, *(left + right for left, right in merges)]))
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=merges))
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    made = Vocabulary.of(tokenizer.to_str(), len(names), (END,), backend)
    return made, [made.tokenizer.decode_bytes([index]) for index in range(len(names))]


def allowed_by(grammar: Grammar) -> list[int]:
    """The tokens that may follow."""
    row = np.zeros(-(-vocabulary()[0].size // 32), dtype=np.int32)
    grammar.fill(row)
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return [one for one in found if one < vocabulary()[0].size]


def is_whole(grammar: Grammar, text: str) -> bool:
    """Whether a grammar takes a text, byte by byte, and may end there."""
    byte_of = {text: index for index, text in enumerate(vocabulary()[1]) if len(text) == 1}
    for byte in text.encode():
        token = byte_of.get(bytes([byte]))
        if grammar.is_complete or token is None or token not in allowed_by(grammar):
            return False
        grammar.advance(token)
    return grammar.is_complete or END in allowed_by(grammar)


def walk(grammar: Grammar, rng: random.Random) -> str | None:
    """A random output, or None where it did not end by itself within `MAX_TOKENS` tokens."""
    texts, said = vocabulary()[1], b""
    for _ in range(MAX_TOKENS):
        allowed = allowed_by(grammar)
        assert allowed, f"nothing may follow {said!r}"
        closers = [one for one in allowed if one == END or texts[one] in (b'"', b"}", b"]")]
        token = rng.choice(closers if closers and rng.random() < 0.3 else allowed)
        if token == END:
            return said.decode(errors="surrogateescape")
        grammar.advance(token)
        said += texts[token]
    return None
