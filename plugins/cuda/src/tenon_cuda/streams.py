"""Streams that engines of this process borrow, and give back when they close.

torch destroys no stream, and keeps a workspace of its library's for each that multiplied (32 MiB on Hopper): engines
that come and go would leave one each. Two that are open at once have their own: one of them may be recording a graph.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import torch


class Streams:
    """Those that nobody has, by device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)

    def lend(self, device: torch.device) -> torch.cuda.Stream:
        """One that nobody else has until it is taken back."""
        with self._lock:
            free = self._free[device]
            return free.pop() if free else torch.cuda.Stream(device)

    def take_back(self, device: torch.device, *streams: torch.cuda.Stream) -> None:
        """They may be lent again; what was queued on them comes before what their next owner queues."""
        with self._lock:
            self._free[device].extend(streams)


STREAMS = Streams()
