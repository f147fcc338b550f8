"""Detokenizing one token at a time, at a cost that does not grow with the text.

Any split of a sequence into pushes gives the text of decoding it whole; half a character is held back until the rest
came. Byte-level vocabularies (most models) go through a table of bytes and an incremental UTF-8 decoder; others through
a window of the last tokens that are decoded together.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Protocol

from tokenizers import Tokenizer, decoders

_REPLACEMENT = "\ufffd"
_NUM_BEFORE = 8  # tokens of a prompt whose end decides how an answer's text begins
_WINDOW_LIMIT = 64  # tokens held back at most; a longer run of broken bytes is shown as it is
_SPACE = "\u2581"


class Detokenizer(Protocol):
    """Text of tokens as they come."""

    def push(self, token: int) -> str:
        """The text that is certain now."""
        ...

    def flush(self) -> str:
        """What was held back; broken characters are shown as such."""
        ...


def byte_of_letter() -> dict[str, int]:
    """The letters by which byte-level vocabularies write bytes (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in table]
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table


@dataclass(slots=True, kw_only=True)
class TokenBytes:
    """The bytes of each token, looked up once. Made once a tokenizer and shared by its detokenizers."""

    backend: Tokenizer
    is_byte_level: bool = field(init=False)
    special_ids: frozenset[int] = field(init=False)
    _known: dict[int, bytes] = field(default_factory=dict)
    _letters: dict[str, int] = field(default_factory=byte_of_letter)

    def __post_init__(self) -> None:
        added = self.backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.is_byte_level = isinstance(self.backend.decoder, decoders.ByteLevel)

    def of(self, token: int) -> bytes:
        """The bytes a token stands for; empty for ids without a token."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._bytes(self.backend.id_to_token(token) or "")
        return known

    def text(self, token: int) -> str:
        """A token's own text, broken characters shown as such."""
        return self.of(token).decode("utf-8", "replace")

    def _bytes(self, text: str) -> bytes:
        if self.is_byte_level:
            mapped = [self._letters.get(letter, -1) for letter in text]
            return text.encode() if -1 in mapped else bytes(mapped)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                pass  # a token that only looks like a byte
        return text.replace(_SPACE, " ").encode()

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        shown_ids: frozenset[int] = frozenset(),
        before: Sequence[int] = (),
    ) -> Detokenizer:
        """A detokenizer for one sequence. shown_ids: special tokens that are not skipped whatever is asked.

        before: what the sequence goes on from; without it, its first word's space is taken for a text's beginning.
        """
        skipped: frozenset[int] = self.special_ids - shown_ids if skip_special_tokens else frozenset()
        if self.is_byte_level:
            return ByteLevelDetokenizer(table=self, skipped=skipped)
        return WindowDetokenizer(backend=self.backend, skipped=skipped, before=before)


@dataclass(slots=True, kw_only=True)
class ByteLevelDetokenizer:
    """For vocabularies whose tokens are strings of bytes."""

    table: TokenBytes
    skipped: frozenset[int]
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def push(self, token: int) -> str:
        return "" if token in self.skipped else self._decoder.decode(self.table.of(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


@dataclass(slots=True, kw_only=True)
class WindowDetokenizer:
    """For any other decoder: a token's text is what it adds to the text of the few before it.

    _ids: [shown last | held back]
                      ^ _shown
    """

    backend: Tokenizer
    skipped: frozenset[int]
    before: InitVar[Sequence[int]] = ()
    _ids: list[int] = field(default_factory=list)
    _shown: int = 0

    def __post_init__(self, before: Sequence[int]) -> None:
        tail = [int(token) for token in before[-_NUM_BEFORE:]]
        if tail and not self._decode(tail).endswith(_REPLACEMENT):  # half a character cannot be told apart again
            self._ids, self._shown = tail, len(tail)

    def push(self, token: int) -> str:
        if token in self.skipped:
            return ""
        self._ids.append(token)
        return self._advance(is_last=len(self._ids) - self._shown > _WINDOW_LIMIT)

    def flush(self) -> str:
        return self._advance(is_last=True)

    def _advance(self, *, is_last: bool) -> str:
        before = self._decode(self._ids[: self._shown])
        now = self._decode(self._ids)
        if not is_last and (len(now) <= len(before) or now.endswith(_REPLACEMENT)):
            return ""
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        return now[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=False)) if ids else ""
