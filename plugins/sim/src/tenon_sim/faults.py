"""What the simulated device raises, by meaning. `SimDevice.classify_fault` tells core which is which."""

from __future__ import annotations

from tenon_platforms.device import Fault
from tenon_platforms.errors import DeviceError


class SimFaultError(DeviceError):
    """A failure switched on by the options, or running out of the simulated memory."""

    def __init__(self, message: str, fault: Fault, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.fault = fault


class BrokenContractError(DeviceError):
    """Core or a kernel did what no real device of this kind would let pass."""


FAULTS: dict[str, Fault] = {
    "request": Fault.REQUEST,
    "retryable": Fault.RETRYABLE,
    "memory": Fault.OUT_OF_MEMORY,
    "lost": Fault.LOST,
}
