"""Keeps tokens of bytes to well-formed UTF-8, where a grammar library does not.

Four first bytes restrict the second one beyond what every continuation byte is (RFC 3629, section 4): without that,
overlong forms and surrogates pass. A token that holds such a pair is hidden; one that begins with the second half is
masked out where the text ends with the first. Costs nothing but there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
SECONDS = {0xE0: (0x80, 0x9F), 0xED: (0xA0, 0xBF), 0xF0: (0x80, 0x8F), 0xF4: (0x90, 0xBF)}  # first -> wrong seconds
ILL_FORMED = re.compile(rb"[\xc0\xc1\xf5-\xff]|\xe0[\x80-\x9f]|\xed[\xa0-\xbf]|\xf0[\x80-\x8f]|\xf4[\x90-\xbf]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WellFormed:
    """last_bytes: each token's (0: it has none). after: what may follow a first byte, as a mask's row."""

    last_bytes: bytes
    after: dict[int, Int32]
    every: Int32

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> WellFormed:
        """tokens: the bytes of each."""
        first = np.array([token[0] if token else 0 for token in tokens], dtype=np.uint8)
        return cls(
            last_bytes=bytes(token[-1] if token else 0 for token in tokens),
            after={byte: _packed((first < low) | (first > high)) for byte, (low, high) in SECONDS.items()},
            every=_packed(np.ones(len(tokens), dtype=np.bool_)),
        )

    def following(self, token: int) -> Int32:
        """The tokens that may follow `token`, as a mask's row, int32 [ceil(vocab / 32)]."""
        return self.after.get(self.last_bytes[token], self.every)


def shown(tokens: Sequence[bytes]) -> list[bytes]:
    """The same, empty where no well-formed text has a token."""
    return [b"" if ILL_FORMED.search(token) else token for token in tokens]


def _packed(allowed: npt.NDArray[np.bool_]) -> Int32:
    bits = np.zeros(-(-len(allowed) // 32) * 32, dtype=np.bool_)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.int32)
