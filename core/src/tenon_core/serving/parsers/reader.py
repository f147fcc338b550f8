"""`Reader`: text that comes in pieces, read by generators that yield where they need more.

Every decision depends on letters, never on where a piece ended: a step waits as long as what it has could still become
something else. What was read since `hold` can be given back. Each letter is looked at a bounded number of times;
`work` counts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields where more text is needed, returns T
Emit = Callable[[str], object]
MAX_HELD = 65_536  # letters that can be given back; a longer attempt is none
_SPACE = re.compile(r"\s+")


class MalformedError(Exception):
    """What looked like a call is none."""


class Markers:
    """Some literal texts to look for. None may lie within another, so the leftmost one is the first to be complete."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(dict.fromkeys(text for text in texts if text))
        for one in self.texts:
            for other in self.texts:
                if one is not other and one in other:
                    raise ValueError(f"marker {one!r} lies within marker {other!r}")
        self.longest = max(map(len, self.texts), default=0)
        self.pattern = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self._firsts = frozenset(text[0] for text in self.texts)
        self._prefixes = frozenset(text[:end] for text in self.texts for end in range(1, len(text)))

    def cut(self, text: str, place: int) -> int:
        """From where on the text's end, at or after `place`, could be the beginning of a marker; its length if not."""
        length = len(text)
        for start in range(max(place, length - self.longest + 1), length):
            if text[start] in self._firsts and text[start:] in self._prefixes:
                return start
        return length


@lru_cache(maxsize=256)
def markers(*texts: str) -> Markers:
    """`Markers`, made once."""
    return Markers(texts)


class Reader:
    """The text that has come and was not read yet. held: what was read since `hold`, or None."""

    def __init__(self) -> None:
        self.text = ""
        self.place = 0
        self.num_before = 0  # letters that came before `text`
        self.is_ended = False
        self.work = 0
        self._held: list[str] | None = None
        self._num_held = 0

    def feed(self, text: str) -> None:
        """Add a piece."""
        self.num_before += self.place
        self.text = self.text[self.place :] + text
        self.place = 0

    # what can be given back

    def hold(self) -> None:
        """Keep from here on what is read."""
        self._held, self._num_held = [], 0

    def let_go(self) -> str:
        """Keep no longer; what was kept."""
        kept = "".join(self._held or ())
        self._held, self._num_held = None, 0
        return kept

    @property
    def num_held(self) -> int:
        """Letters kept."""
        return self._num_held

    # reading

    def take(self, end: int) -> str:
        """Read up to place `end`, or less where no more can be kept. Raises `MalformedError` where nothing can."""
        if self._held is not None:
            room = MAX_HELD - self._num_held
            if room <= 0:
                raise MalformedError
            end = min(end, self.place + room)
        piece = self.text[self.place : end]
        self.place = end
        if self._held is not None:
            self._held.append(piece)
            self._num_held += len(piece)
        return piece

    def skip(self, count: int) -> None:
        """Read `count` letters that are there. Raises `MalformedError`, nothing read, where they cannot be kept."""
        if self._held is not None and self._num_held + count > MAX_HELD:
            raise MalformedError
        self.take(self.place + count)

    def ahead(self, count: int) -> Steps[str]:
        """The next letters, not read; fewer at the end."""
        while len(self.text) - self.place < count and not self.is_ended:
            yield
        self.work += count
        return self.text[self.place : self.place + count]

    def peek(self) -> Steps[str]:
        """The next letter, not read; empty at the end."""
        while self.place >= len(self.text):
            if self.is_ended:
                return ""
            yield
        self.work += 1
        return self.text[self.place]

    def space(self, emit: Emit | None = None) -> Steps[None]:
        """Read white space, all there is."""
        while (letter := (yield from self.peek())) and letter.isspace():
            match = _SPACE.match(self.text, self.place)
            piece = self.take(match.end() if match else self.place + 1)
            self.work += len(piece)
            if emit is not None:
                emit(piece)

    def run(self, pattern: re.Pattern[str]) -> str:
        """Read what matches of what is there, perhaps nothing."""
        match = pattern.match(self.text, self.place)
        piece = self.take(match.end()) if match else ""
        self.work += len(piece) + 1
        return piece

    def whole_run(self, pattern: re.Pattern[str], limit: int) -> Steps[str]:
        """Read all letters that match, more than `limit` of them being an error."""
        found = ""
        while (yield from self.peek()):
            match = pattern.match(self.text, self.place)
            if match is None:
                break
            found += self.take(min(match.end(), self.place + limit + 1 - len(found)))
            if len(found) > limit:
                raise MalformedError
        self.work += len(found)
        return found

    def which(self, wanted: Markers) -> Steps[str]:
        """The marker that comes next, not read; empty where none does."""
        while True:
            match = wanted.pattern.match(self.text, self.place)
            self.work += wanted.longest
            if match is not None:
                return match.group()
            rest = len(self.text) - self.place
            if self.is_ended or rest >= wanted.longest or (rest and wanted.cut(self.text, self.place) != self.place):
                return ""
            yield

    def literal(self, *texts: str) -> Steps[str]:
        """Read one of the texts if it comes next; which one, empty where none does."""
        found = yield from self.which(markers(*texts))
        if found:
            self.skip(len(found))
        return found

    def closing(self, *texts: str) -> Steps[str]:
        """Read one of the texts if it comes next, or, at the text's end, the beginning of one: it was cut off."""
        wanted = markers(*texts)
        found = yield from self.literal(*texts)
        if not found and self.is_ended and wanted.cut(self.text, self.place) == self.place:
            self.take(len(self.text))
        return found

    def copy_until(self, wanted: Markers, emit: Emit, limit: int | None = None) -> Steps[str]:
        """Give all text before the first marker to `emit`; read the marker and return it, empty at the text's end.

        limit: letters before the marker; more of them raise `MalformedError`.
        """
        found = yield from self.copy_to(wanted, emit, limit)
        self.skip(len(found))
        return found

    def copy_to(self, wanted: Markers, emit: Emit, limit: int | None = None) -> Steps[str]:
        """The same, the marker not read."""
        left = limit
        while True:
            text, place = self.text, self.place
            end = len(text) if left is None else min(len(text), place + left + wanted.longest)
            match = wanted.pattern.search(text, place, end)
            if match is not None:
                stop = match.start()
            else:
                stop = len(text) if self.is_ended else wanted.cut(text, place)
            self.work += (stop if match else end) - place + wanted.longest
            is_over = left is not None and stop - place > left
            if left is not None:
                stop = min(stop, place + left)
                left -= stop - place
            while self.place < stop:
                emit(self.take(stop))
            if is_over:
                raise MalformedError
            if match is not None:
                return match.group()
            if self.is_ended:
                return ""
            yield

    def text_until(self, wanted: Markers, limit: int) -> Steps[tuple[str, str]]:
        """(text before the first marker, that marker). Raises `MalformedError` where none comes within `limit`."""
        parts: list[str] = []
        found = yield from self.copy_until(wanted, parts.append, limit)
        if not found:
            raise MalformedError
        return "".join(parts), found
