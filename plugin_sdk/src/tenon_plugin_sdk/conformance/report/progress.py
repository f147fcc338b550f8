"""Where a run is, for those who wait: the level, how many checks of it and of all, and for how long it has run.

A line at the beginning of every level, and within one no more often than every `EVERY_S` seconds: a log stays short.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..registry import LEVELS, Check

EVERY_S = 15.0


@dataclass(slots=True, kw_only=True)
class Progress:
    """One session's checks. totals, begun: by level."""

    totals: Counter[str]
    begun: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)
    told: float = 0.0

    @classmethod
    def of(cls, checks: Iterable[Check]) -> Progress:
        """The progress of a session that will run these, one entry a case."""
        return cls(totals=Counter(check.level for check in checks))

    def begin(self, check: Check, address: str, now: float) -> str | None:
        """A check begins: the line to show, None where the last one is recent. now: of `time.monotonic`."""
        self.begun[check.level] += 1
        if self.begun[check.level] > 1 and now - self.told < EVERY_S:
            return None
        self.told = now
        level = f"{check.level} {LEVELS[check.level][0]}: {self.begun[check.level]} of {self.totals[check.level]}"
        return (
            f"[{elapsed(now - self.started)}] {level}, {self.begun.total()} of {self.totals.total()} in all: {address}"
        )


def elapsed(seconds: float) -> str:
    """`4:07`, or `1:04:07`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
