"""Where a leak comes from: work is done again, traced, and what each time of it leaves behind is named.

Slow, so only for what was found already: tracing doubles the time of the work, a census walks a million objects.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .leaks import type_name
from .memory import tidy

FRAMES = 6
MOST = 3
LIBRARIES = {"torch", "numpy"}  # their lines do not say who called
OWN = {"tenon_plugin_sdk", "tracemalloc.py"}


def left_behind(work: Callable[[], None], times: int) -> list[str]:
    """Lines whose allocations stay, more than one each time: `ops/norm.py:31 (6 pieces, 1536 bytes)`, largest first."""
    tracemalloc.start(FRAMES)
    try:
        work()
        tidy()
        before = tracemalloc.take_snapshot()
        for _ in range(times):
            work()
        tidy()
        grown = tracemalloc.take_snapshot().compare_to(before, "traceback")
    finally:
        tracemalloc.stop()
    pieces: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for one in grown:
        line = _line(one.traceback)
        if line is not None:
            pieces[line] += one.count_diff
            sizes[line] += one.size_diff
    found = [line for line, _ in sizes.most_common() if pieces[line] > times]
    return [f"{line} ({pieces[line]} pieces, {sizes[line]} bytes)" for line in found[:MOST]]


def untracked_growth(work: Callable[[], None], times: int) -> dict[str, float]:
    """Objects that the garbage collector does not know (numbers, texts, arrays), by type: how many more each time."""
    work()
    before = _untracked()
    for _ in range(times):
        work()
    more = _untracked()
    more.subtract(before)
    return {name: count / times for name, count in more.items() if count >= times}


def _untracked() -> Counter[str]:
    """They are found in those that hold them."""
    tidy()
    holders = gc.get_objects()
    kinds: dict[int, type] = {}  # by identity; made after `holders`, to be none of them
    for holder in holders:
        for one in gc.get_referents(holder):
            if not gc.is_tracked(one):
                kinds[id(one)] = type(one)
    return Counter(map(type_name, kinds.values()))


def _line(traceback: tracemalloc.Traceback) -> str | None:
    """The innermost line that is not a library's; None for what the kit made itself."""
    for frame in reversed(traceback):
        parts = Path(frame.filename).parts
        if OWN.intersection(parts):
            return None
        if not LIBRARIES.intersection(parts):
            return f"{'/'.join(parts[-3:])}:{frame.lineno}"
    return None
