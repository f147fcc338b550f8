"""Rules: what may not come next in a sequence, known from the tokens that came: bad words, a thought that is too long.

A rule takes bits out of a row of the sampler's mask (bit v % 32 of word v / 32: token v is allowed), after the grammar
where there is one. Each step costs a rule the tokens that it forbids, not the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tenon_platforms.errors import RequestError

Int32 = npt.NDArray[np.int32]
Words = tuple[tuple[int, ...], ...]


class Rule(Protocol):
    """One sequence's place in a rule."""

    def fork(self) -> Rule: ...
    def advance(self, token: int) -> None: ...
    def narrow(self, row: Int32) -> None: ...


def bit(token: int) -> np.int32:
    """A token's bit in its word."""
    found: np.int32 = np.uint32(1 << (token % 32)).view(np.int32)
    return found


@dataclass(slots=True, kw_only=True)
class BadWords:
    """words: token ids; the last token of one is forbidden wherever the output ends with all before it.

    allowed: all that may be chosen otherwise, None for any token: where nothing may, the sampler takes what it finds.
    """

    words: Words
    allowed: frozenset[int] | None = None
    came: tuple[int, ...] = ()  # the output's last tokens, as many as the longest word has but one

    def fork(self) -> BadWords:
        """The same place, for another sample."""
        return replace(self)

    def forbidden(self) -> set[int]:
        """Tokens that would complete a word."""
        came = self.came
        return {word[-1] for word in self.words if len(word) == 1 or came[-len(word) + 1 :] == word[:-1]}

    def advance(self, token: int) -> None:
        """Take a chosen token in. Raises `RequestError` where it is forbidden: there was no other to choose."""
        if token in self.forbidden() or (self.allowed is not None and token not in self.allowed):
            raise RequestError(
                "bad_words forbid every token that the other parameters allow: leave some of them out",
                param="bad_words",
            )
        longest = max(map(len, self.words))
        self.came = (*self.came, token)[-longest + 1 :] if longest > 1 else ()

    def narrow(self, row: Int32) -> None:
        """Take the forbidden tokens out of a mask's row."""
        for token in self.forbidden():
            row[token // 32] &= ~bit(token)


class ThinkingLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is thought may take so many tokens; then `end` is written.

    opens, closes: marks around it. is_open: whether the output begins within. repeats: it may open again, anywhere.
    """

    tokens: int
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    end: str
    is_open: bool = False
    repeats: bool = False


@dataclass(slots=True, kw_only=True)
class Thought:
    """text: of a token, as bytes. end: the tokens that close it."""

    limit: ThinkingLimit
    text: Callable[[int], bytes]
    end: tuple[int, ...]
    is_open: bool
    is_over: bool = False  # nothing is watched any more
    num_spent: int = 0
    num_ended: int = 0  # tokens of the end that were written
    tail: bytes = b""

    def fork(self) -> Thought:
        """The same place, for another sample."""
        return replace(self)

    @property
    def is_spent(self) -> bool:
        """Whether the end must come now."""
        return self.is_open and not self.is_over and self.num_spent >= self.limit.tokens

    def advance(self, token: int) -> None:
        """Take a chosen token in. Raises `RequestError` where the end had to come and could not."""
        if self.is_over:
            return
        if self.is_spent:
            if token != self.end[self.num_ended]:
                raise RequestError(
                    "the thought is at its limit, and other parameters do not allow its end: leave one of them out",
                    param="thinking_token_budget",
                )
            self.num_ended += 1
            self.is_over = self.num_ended == len(self.end)
            return
        self.tail += self.text(token)
        if self.is_open:
            self.num_spent += 1
            if self._passed(self.limit.closes):
                self.is_open, self.is_over = False, not self.limit.repeats
        elif self._passed(self.limit.opens):
            self.is_open = True
        elif not self.limit.repeats and not self._may_open():
            self.is_over = True
        longest = max(map(len, (*self.limit.opens, *self.limit.closes)))
        self.tail = self.tail[-4 * longest :]

    def _passed(self, marks: tuple[str, ...]) -> bool:
        """Whether one of the marks is complete; what is behind it goes on."""
        for mark in marks:
            _, found, rest = self.tail.partition(mark.encode())
            if found:
                self.tail = rest
                return True
        return False

    def _may_open(self) -> bool:
        """Whether the output so far can still become a mark."""
        begun = self.tail.lstrip()
        return any(mark.encode().startswith(begun) for mark in self.limit.opens)

    def narrow(self, row: Int32) -> None:
        """At the limit, leave nothing but the end's next token."""
        if self.is_spent:
            token = self.end[self.num_ended]
            kept = row[token // 32] & bit(token)
            row[:] = 0
            row[token // 32] = kept
