"""Where the programs of one launch wait for each other: a counter in a device's memory, lent to one engine at a time.

Programs that wait for each other must all be running. Two launches of the kind, beside each other, could each hold half
of the device and wait for the other half for ever; work of one engine is queued on one stream, so who has the device's
counter has its launches one after the other. A second engine of this process gets none, and does without such kernels.
Other processes do not run at the same time, unless the driver's multi-process service lets them.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import torch
from torch import Tensor

LOG = logging.getLogger(__name__)
PIPE, DEFAULT_PIPE = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"


class Meetings:
    """The counters of this process, by device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[torch.device, Tensor] = {}
        self._lent: set[torch.device] = set()

    def lend(self, device: torch.device) -> Tensor | None:
        """int64 [1], a multiple of the number of programs of every launch so far; None while another engine has it."""
        if shares_devices():
            LOG.info("%s may be shared with other processes (MPS): kernels whose programs meet are not used", device)
            return None
        with self._lock:
            if device in self._lent:
                LOG.info("another engine of this process has %s: kernels whose programs meet are not used", device)
                return None
            if device not in self._counters:  # once: engines that come and go find the same
                self._counters[device] = torch.zeros(1, dtype=torch.int64, device=device)
            self._lent.add(device)
            return self._counters[device]

    def take_back(self, device: torch.device) -> None:
        """Its engine is closed."""
        with self._lock:
            self._lent.discard(device)


def shares_devices() -> bool:
    """Whether processes may run on a device at the same time."""
    try:
        return (Path(os.environ.get(PIPE) or DEFAULT_PIPE) / "control").exists()
    except PermissionError:
        return True  # somebody else's service, into which we do not see


MEETINGS = Meetings()
