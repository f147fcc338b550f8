"""How long kernels take on the device: calls captured into one graph, the median of some replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch


def timed(calls: Sequence[Callable[[], object]], repeats: int = 7) -> float:
    """Microseconds a call. The first two calls run before, so that what is compiled at a first call is compiled."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    found = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(found)
