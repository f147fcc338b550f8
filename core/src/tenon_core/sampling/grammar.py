"""Grammars: from `StructuredOutputs` to matchers that say, token by token, what may come next.

Two libraries do it: llguidance always, XGrammar where it is installed. Which one, the operator says
(`--structured-outputs-backend`), or the request's features: `auto` is llguidance but for what XGrammar alone follows.
A matcher is advanced by the tokens that were chosen, and fills a row of the sampler's mask: bit v % 32 of word v / 32
set means that token v is allowed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from tenon_platforms.errors import RequestError

from . import guidance_backend
from .backends import backend_for
from .rules import ThinkingLimit, Thought
from .structured import StructuredOutputs
from .xgrammar_backend import XGrammarVocabulary

BYTE_END = 256  # of the vocabulary of bytes


class Grammar(Protocol):
    """One sequence's place in its grammar."""

    def fork(self) -> Grammar:
        """The same place, for another sample."""

    def advance(self, token: int) -> None:
        """Take a chosen token in. Raises `RequestError` where the grammar does not allow it, or became too complex."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the allowed tokens into a mask's row, int32 [ceil(vocab / 32)], C-contiguous. Raises `RequestError`."""


def check(wanted: StructuredOutputs, backend: str = "auto", vocabulary: Vocabulary | None = None) -> None:
    """Compile and take the first step, over a vocabulary of bytes or (XGrammar) the model's.

    Raises `RequestError` that says what is wrong, and where.
    """
    if backend_for(wanted, backend) == "guidance":
        guidance_backend.check(wanted)
        return
    over = vocabulary or _bytes_alone()
    over.compile(wanted).fill(np.zeros(-(-over.size // 32), dtype=np.int32))


@cache
def _bytes_alone() -> Vocabulary:
    tokens = [bytes([one]) for one in range(BYTE_END)]
    over = XGrammarVocabulary.of([*tokens, b""], (BYTE_END,))
    return Vocabulary(tokenizer=LLTokenizer("byte"), size=BYTE_END + 1, backend="xgrammar", _xgrammar=over)


@dataclass(slots=True, kw_only=True)
class Vocabulary:
    """The tokens as grammars see them. Making one takes a large vocabulary about half a second."""

    tokenizer: LLTokenizer
    size: int
    backend: str = "auto"
    tokenizer_json: str = ""
    eos_token_ids: tuple[int, ...] = ()
    _xgrammar: XGrammarVocabulary | None = None  # made with the first grammar that it follows
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, tokenizer_json: str, size: int, eos_token_ids: Sequence[int], backend: str = "auto") -> Vocabulary:
        """tokenizer_json: as `tokenizers` writes it. size: width of the logits. backend: "auto" or a library's name."""
        return cls(
            tokenizer=LLTokenizer(tokenizer_json, n_vocab=size, eos_token=list(eos_token_ids)),
            size=size,
            backend=backend,
            tokenizer_json=tokenizer_json,
            eos_token_ids=tuple(eos_token_ids),
        )

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """A grammar at its start; from any thread. Raises `RequestError`."""
        if backend_for(wanted, self.backend) == "guidance":
            return guidance_backend.compiled(self.tokenizer, wanted)
        with self._lock:
            if self._xgrammar is None:
                self._xgrammar = XGrammarVocabulary.of(self._texts(), self.eos_token_ids)
        return self._xgrammar.compile(wanted)

    def _texts(self) -> list[bytes]:
        """The bytes of every token, none of those that stand for no text."""
        added = Tokenizer.from_str(self.tokenizer_json).get_added_tokens_decoder()
        hidden = {token for token, one in added.items() if one.special}.union(self.eos_token_ids)
        return [b"" if one in hidden else self.tokenizer.decode_bytes([one]) for one in range(self.size)]

    def thought(self, limit: ThinkingLimit) -> Thought:
        """A thought with a limit, at its start. Raises `RequestError` where the vocabulary cannot write its end."""
        end = tuple(self.tokenizer.tokenize_str(limit.end, parse_special=True))
        if not end:
            raise RequestError(f"no token writes {limit.end!r}", param="thinking_token_budget")
        return Thought(
            limit=limit, text=lambda token: bytes(self.tokenizer.decode_bytes([token])), end=end, is_open=limit.is_open
        )


__all__ = ["Grammar", "Vocabulary", "check"]
