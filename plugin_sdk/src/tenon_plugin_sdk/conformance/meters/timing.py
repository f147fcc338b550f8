"""Seconds of a piece of device work: the median of repeats, each long enough for the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from tenon_platforms.device import Device

LEAST_S = 0.005  # of one repeat: below, the work is done several times in it
MOST_TIMES = 1000


def seconds_of(device: Device, work: Callable[[], object], repeats: int) -> float:
    """Seconds of one `work`, queued work waited for once a repeat."""
    once = _run(device, work, 1)  # what is made at the first time is not counted
    once = _run(device, work, 1)
    times = max(1, min(MOST_TIMES, int(LEAST_S / max(once, 1e-9))))
    return statistics.median(_run(device, work, times) / times for _ in range(max(repeats, 3)))


def _run(device: Device, work: Callable[[], object], times: int) -> float:
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    device.synchronize()
    return time.perf_counter() - begin
