"""The table at the end of a run: one line a level, and which level the platform may advertise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..registry import LEVELS
from .results import OUTCOMES, Results


def table_lines(results: Results, levels: Iterable[str]) -> list[str]:
    """Lines to print."""
    lines = [f"{'level':<16}" + "".join(f"{name:>9}" for name in OUTCOMES) + f"{'time':>10}"]
    for level in levels:
        if not results.of(level):
            continue
        counts = results.counts(level)
        seconds = sum(entry.seconds for entry in results.of(level))
        name = f"{level} {LEVELS[level][0]}"
        lines.append(f"{name:<16}" + "".join(f"{counts[each]:>9}" for each in OUTCOMES) + f"{seconds:>9.1f}s")
    lines += _kernel_lines(results)
    lines.append(verdict(results))
    return lines


def verdict(results: Results) -> str:
    """What the run says of the platform: a part of the checks says nothing of a level."""
    highest = results.highest()
    if highest is not None:
        return f"{results.platform} conforms up to {highest} ({LEVELS[highest][0]})"
    if results.whole and results.of("L0"):
        return f"{results.platform} conforms to no level yet, counted from L0"
    failed = sum(entry.outcome == "failed" for entry in results.entries)
    missing = f" (missing: {'; '.join(results.missing)})" if results.missing else ""
    return (
        f"a part of the checks{missing}: {f'{failed} of {len(results.entries)} failed' if failed else 'none failed'};"
        f" which level {results.platform} conforms to, a whole run from L0 says"
    )


def _kernel_lines(results: Results) -> Iterator[str]:
    """Whose kernels L2 looked at: what is green on the reference says nothing of the platform's."""
    if not results.of("L2"):
        return
    yield f"kernels of its own that ran: {', '.join(results.served) or 'none, all were the reference'}"
    for name, reason in results.silent.items():
        yield f"offered, but never ran: {name} ({reason})"
