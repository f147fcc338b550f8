"""`torch.sim`: what torch asks a device's module for. Tenon itself reaches the device through its socket only."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch


class SimModule(ModuleType):
    """The module; `num_devices` and `wait` are the library's."""

    def __init__(self, *, num_devices: Callable[[], int], wait: Callable[[], None]) -> None:
        super().__init__("torch.sim", __doc__)
        self._num_devices = num_devices
        self._wait = wait

    def is_available(self) -> bool:
        """The library is loaded, so there is a device."""
        return True

    def device_count(self) -> int:
        """Up to the highest index that was opened in this process."""
        return self._num_devices()

    def current_device(self) -> int:
        """This thread's."""
        return torch.accelerator.current_device_index()

    def set_device(self, device: int) -> None:
        """For this thread."""
        torch.accelerator.set_device_index(device)

    def synchronize(self, device: int | None = None) -> None:
        """Wait for what is queued. What it raised comes from the device socket's events."""
        self._wait()

    def manual_seed_all(self, seed: int) -> None:
        """Nothing: without a generator of their own, operations draw from the host's, which torch has seeded."""

    def _is_in_bad_fork(self) -> bool:
        return False
