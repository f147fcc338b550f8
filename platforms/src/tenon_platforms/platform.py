"""`Platform`: one device family's backend, the object a manifest names. Six sockets, each with a neutral default.

A new backend needs a manifest, `device` and nothing else to serve a model on reference kernels; it gets faster as it
overrides. Instances are made once per process with the operator's options for this platform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .adjustments import Adjustment
from .capabilities import Capabilities
from .collectives import Collectives, TorchCollectives
from .device import Device, DeviceInfo
from .execution import Execution

if TYPE_CHECKING:
    from .model import ModelSpec
    from .ops.table import OpTable


class Platform:
    """Base of all platforms. `name` and `contract` repeat the manifest's and are checked after import.

    options: values for this platform's `--platform-opt`, typed by the manifest's schema.
    """

    name: ClassVar[str] = ""
    contract: ClassVar[str] = ""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})

    def probe(self) -> Sequence[DeviceInfo]:
        """Devices of this platform. Creates no context; safe before fork."""
        return (DeviceInfo(id=0, name="host"),)

    def device(self, index: int = 0) -> Device:
        """The device socket for one device."""
        return Device()

    def capabilities(self, device: Device) -> Capabilities:
        """What this platform can do here."""
        return Capabilities()

    def register_ops(self, table: OpTable, device: Device) -> None:
        """Offer kernels, attention backends included."""

    def execution(self, device: Device) -> Execution:
        """The execution socket."""
        return Execution(device)

    def rank_device(self, rank: int, size: int) -> Device:
        """The device of one of the ranks that share a model, not yet opened. Raises `ConfigError` where it has none.

        A platform whose one device has parts (a host's nodes) gives each rank a part.
        """
        return self.device(rank)

    def collectives(self, device: Device, *, rank: int, size: int, address: str) -> Collectives:
        """The collectives socket of one rank."""
        return Collectives() if size == 1 else TorchCollectives(rank=rank, size=size, address=address)

    def adjustments(self, requested: Mapping[str, Any], model: ModelSpec) -> Sequence[Adjustment]:
        """Changes to the flat engine configuration that this platform needs; it never changes it itself."""
        return ()
