"""The table at the end of a run: one line a level, and which level the platform may advertise."""

from __future__ import annotations

from collections.abc import Iterable

from ..registry import LEVELS
from .results import OUTCOMES, Results


def table_lines(results: Results, levels: Iterable[str]) -> list[str]:
    """Lines to print."""
    lines = [f"{'level':<16}" + "".join(f"{name:>9}" for name in OUTCOMES) + f"{'time':>10}"]
    for level in levels:
        counts = results.counts(level)
        seconds = sum(entry.seconds for entry in results.of(level))
        name = f"{level} {LEVELS[level][0]}"
        lines.append(f"{name:<16}" + "".join(f"{counts[each]:>9}" for each in OUTCOMES) + f"{seconds:>9.1f}s")
    highest = results.highest()
    lines.append(
        f"{results.platform} conforms up to {highest} ({LEVELS[highest][0]})"
        if highest is not None
        else f"{results.platform} conforms to no level yet, counted from L0"
    )
    return lines
