"""A part of a run: every N-th check, so that N processes beside each other run them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The `number`-th of `of` parts, from 1. levels, checks: the run's, and how many they have; set at collection."""

    number: int
    of: int
    levels: tuple[str, ...] = ()
    checks: int = 0

    @classmethod
    def parse(cls, text: str) -> Part:
        """K/N. Raises ValueError for another text."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f"--part {text}: expected K/N, the K-th of N parts, with K from 1 to N, such as 1/4")
        return cls(number=int(number), of=int(of))

    def take(self, items: Sequence[Item]) -> list[Item]:
        """Its items: neighbours, of one family mostly, go to different parts. Raises ValueError where it has none."""
        if self.number > len(items):
            raise ValueError(f"--part {self.number}/{self.of}: there are only {len(items)} checks; make fewer parts")
        return list(items[self.number - 1 :: self.of])

    def place(self, index: int) -> int:
        """Where the item that it took as its `index`-th, from 0, is among all of them."""
        return index * self.of + self.number - 1
