"""Stop strings found in a text that comes in pieces: the first one to be completed wins, however the text is split."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class StopScanner:
    """Knuth, Morris and Pratt's automaton over all stop strings: linear in the text, no backtracking.

    `feed` returns text that no stop string can begin in any more. `matched` is set once one was found, and nothing is
    returned after it. include: whether the stop string itself is shown.
    """

    stops: tuple[str, ...]
    include: bool = False
    matched: str | None = None
    _held: str = ""
    _states: list[int] = field(init=False)  # how much of each stop string the text ends with
    _tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._states = [0] * len(self.stops)
        self._tables = [failure_table(stop) for stop in self.stops]

    def feed(self, text: str) -> str:
        """Take text in; the part of it that may be shown."""
        if self.matched is not None:
            return ""
        start = len(self._held)
        self._held += text
        for place in range(start, len(self._held)):
            found = self._step(self._held[place])
            if found is not None:
                self.matched = found
                end = place + 1 if self.include else place + 1 - len(found)
                shown, self._held = self._held[:end], ""
                return shown
        cut = len(self._held) - max(self._states, default=0)
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What was held back: the text ends here, so no stop string came of it."""
        shown, self._held = self._held, ""
        return shown

    def _step(self, letter: str) -> str | None:
        """Advance every automaton by one letter; the longest stop string that ends with it."""
        found: str | None = None
        for place, stop in enumerate(self.stops):
            state, table = self._states[place], self._tables[place]
            while state and stop[state] != letter:
                state = table[state - 1]
            if stop[state] == letter:
                state += 1
            if state == len(stop):
                found = stop if found is None or len(stop) > len(found) else found
                state = table[state - 1]
            self._states[place] = state
        return found


def failure_table(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper suffix that is a prefix too."""
    table = [0] * len(text)
    length = 0
    for place in range(1, len(text)):
        while length and text[place] != text[length]:
            length = table[length - 1]
        if text[place] == text[length]:
            length += 1
        table[place] = length
    return table
