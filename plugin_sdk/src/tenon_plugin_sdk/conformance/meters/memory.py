"""Memory at rest, three ways, and what a leak looks like in them.

    device    bytes of the device in use (not for the host's own memory, which everyone shares)
    host      resident bytes of this process
    objects   blocks that Python's allocator holds

A sample is taken when the engine is idle and garbage is collected, after rounds of the same requests; so the right
slope is zero. The slope is the median of all pairwise slopes (Theil and Sen): one jump, as an allocator's new arena
makes, does not move it.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from tenon_platforms.device import Device

STATM = Path("/proc/self/statm")
# growth a step that is no leak: caches by shape still fill a little, and a sample is an object too
LEAST = {"device": 1.0, "host": 128.0, "objects": 0.5}


@dataclass(slots=True, kw_only=True)
class MemorySamples:
    """Samples by meter, one a round."""

    device: Device
    held: dict[str, list[float]] = field(default_factory=dict)

    def take(self) -> None:
        """One sample of every meter there is."""
        self.device.synchronize()
        gc.collect()
        found: dict[str, float] = {"objects": float(sys.getallocatedblocks())}
        resident = resident_bytes()
        if resident is not None:
            found["host"] = float(resident)
        if not is_host_memory(self.device):
            memory = self.device.memory()
            found["device"] = float(memory.total - memory.free)
        for name, value in found.items():
            self.held.setdefault(name, []).append(value)

    def slopes(self, *, steps: float = 1.0, least: Mapping[str, float] = LEAST) -> dict[str, float]:
        """Growth a step by meter, where it is more than nothing. steps: in a round."""
        found = {name: theil_sen(values) / steps for name, values in self.held.items()}
        return {name: slope for name, slope in found.items() if slope >= least[name]}


@contextmanager
def settled() -> Iterator[None]:
    """What is there now is not collected again and again: a collection looks at what is new only."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def is_host_memory(device: Device) -> bool:
    """Whether the device's memory is the host's, as the contract's default measures it."""
    return type(device).memory is Device.memory


def resident_bytes() -> int | None:
    """Resident bytes of this process, None where the system does not tell."""
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def theil_sen(values: list[float]) -> float:
    """The median slope between any two samples, a sample."""
    slopes = [(later - earlier) / (j - i) for (i, earlier), (j, later) in combinations(enumerate(values), 2)]
    return statistics.median(slopes) if slopes else 0.0
