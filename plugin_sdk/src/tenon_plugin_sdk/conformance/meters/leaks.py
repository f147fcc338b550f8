"""A leak: what grows between samples that are taken at rest, after rounds of the same requests. Right is no growth.

Samples are cut into segments, and a segment counts as its lowest one: what is there now and then is noise. A leak grows
from segment to segment; an allocator's new arena, or a counter too large for a shared small number, is one step.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tenon_platforms.device import Device

from .memory import BLOCKS, read_meters, tidy

SEGMENTS = 5
OBJECTS = "objects of "  # begins the names that are types
ARRAYS = f"{OBJECTS}array.array"
# growth a step that is no leak: pages are touched late, and malloc's caches of other threads keep a few bytes back
LEAST = {"resident bytes": 256.0, "bytes of malloc's heap": 4.0, BLOCKS: 0.02}


@dataclass(slots=True, kw_only=True)
class MemorySamples:
    """Samples of the meters, and of how many objects there are of every type, of those that are new since `settled`.

    All `rounds` of them have their place from the start: taking one must not hold memory itself.
    """

    device: Device
    rounds: int
    taken: int = 0
    held: dict[str, array[float]] = field(default_factory=dict)

    def take(self) -> None:
        """One sample."""
        self.device.synchronize()
        tidy()
        found = read_meters(self.device) | living()
        found[ARRAYS] = found.get(ARRAYS, 0.0) - len(self.held)  # its own, one for every type it ever saw
        for name, value in found.items():
            self.held.setdefault(name, array("d", bytes(8 * self.rounds)))[self.taken] = value
        self.taken += 1

    def growth(self, *, steps: float = 1.0, least: Mapping[str, float] = LEAST) -> dict[str, float]:
        """By how much a step what grew by more than `least`. steps: in a round."""
        span = steps * self.rounds / SEGMENTS
        slopes = {name: grown(values) / span for name, values in self.held.items()}
        return {name: slope for name, slope in slopes.items() if slope > least.get(name, 0.0)}

    def is_still(self) -> bool:
        """Whether the last two samples say the same of objects: what is made once has been made."""
        last = self.taken - 1
        names = [name for name in self.held if name.startswith(OBJECTS)]
        return last > 0 and all(self.held[name][last] == self.held[name][last - 1] for name in names)


def living() -> dict[str, float]:
    """Objects by type that the garbage collector knows and that are new since `settled`."""
    counts: dict[str, float] = {}
    for kind, count in Counter(map(type, gc.get_objects())).items():
        name = f"{OBJECTS}{type_name(kind)}"
        counts[name] = counts.get(name, 0.0) + count
    return counts


def type_name(kind: type) -> str:
    """`tenon_thing.attention.Plan`; builtins without their module."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def grown(values: Sequence[float]) -> float:
    """By how much values grow from one segment to the next, in most of them; 0.0 for too few values."""
    cuts = [len(values) * place // SEGMENTS for place in range(SEGMENTS + 1)]
    lows = [min(values[begin:end], default=0.0) for begin, end in pairwise(cuts)]
    return max(sorted(later - earlier for earlier, later in pairwise(lows))[1], 0.0)
