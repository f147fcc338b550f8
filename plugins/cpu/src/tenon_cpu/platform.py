"""`CPUPlatform`: the host's processor, filled into the contract's sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tenon_platforms.adjustments import Adjustment
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.device import Device, DeviceInfo
from tenon_platforms.errors import ConfigError
from tenon_platforms.execution import Execution
from tenon_platforms.platform import Platform

from .capabilities import adjustments, capabilities
from .device import CPUDevice
from .execution import CPUExecution
from .isa import read_cpu

if TYPE_CHECKING:
    from tenon_platforms.model import ModelSpec
    from tenon_platforms.ops.table import OpTable

DEFAULTS: dict[str, Any] = {"threads": 0, "weights": "auto", "gguf": "auto"}  # as in platform.toml


class CPUPlatform(Platform):
    """Options: threads, weights, gguf (see platform.toml)."""

    name: ClassVar[str] = "cpu"
    contract: ClassVar[str] = ">=0.1,<0.2"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__({**DEFAULTS, **(options or {})})
        self.cpu = read_cpu()
        if self.options["threads"] < 0:
            raise ConfigError(
                f"--platform-opt cpu.threads={self.options['threads']}: must be 0 or more",
                remedy="leave it out to use every physical core",
            )

    def probe(self) -> Sequence[DeviceInfo]:
        return (self._info(),)

    def device(self, index: int = 0) -> Device:
        if index:
            raise ConfigError(f"the CPU platform has one device, 0: there is no device {index}")
        return CPUDevice(info=self._info(), threads=self.options["threads"] or self.cpu.physical_cores)

    def capabilities(self, device: Device) -> Capabilities:
        return capabilities(self.cpu, inplace=self.options["gguf"] == "inplace")

    def register_ops(self, table: OpTable, device: Device) -> None:
        from .ops.offers import register

        register(table, self.cpu, weights=self.options["weights"], gguf=self.options["gguf"])

    def execution(self, device: Device) -> Execution:
        return CPUExecution(device)

    def adjustments(self, requested: Mapping[str, Any], model: ModelSpec) -> Sequence[Adjustment]:
        return tuple(adjustments(self.cpu, requested))

    def _info(self) -> DeviceInfo:
        return DeviceInfo(id=0, name=self.cpu.name, arch=self.cpu.arch, memory=Device().memory().total)
