"""`CPUPlatform`: the host's processor, filled into the contract's sockets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tenon_platforms.adjustments import Adjustment
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device, DeviceInfo
from tenon_platforms.errors import ConfigError
from tenon_platforms.execution import Execution
from tenon_platforms.platform import Platform

from . import native
from .capabilities import adjustments, capabilities
from .device import CPUDevice
from .execution import CPUExecution
from .isa import part_of, read_cpu

if TYPE_CHECKING:
    from tenon_platforms.model import ModelSpec
    from tenon_platforms.ops.table import OpTable

MAX_THREADS = 1024  # beyond what a system gives a process, torch does not fail: it takes the process down
DEFAULTS: dict[str, Any] = {  # as in platform.toml
    "threads": 0, "weights": "auto", "gguf": "auto", "kernels": "auto", "isa": "auto", "bind": "off",
}  # fmt: skip
LOG = logging.getLogger(__name__)


class CPUPlatform(Platform):
    """Options: threads, bind, isa, kernels, weights, gguf (see platform.toml)."""

    name: ClassVar[str] = "cpu"
    contract: ClassVar[str] = ">=0.1,<0.2"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__({**DEFAULTS, **(options or {})})
        self.cpu = read_cpu()
        if not 0 <= self.options["threads"] <= MAX_THREADS:
            raise ConfigError(
                f"--platform-opt cpu.threads={self.options['threads']}: it lies between 0 and {MAX_THREADS}",
                remedy="leave it out to use every physical core",
            )
        if self.options["isa"] != "auto" and self.options["isa"] not in native.ISAS:
            raise ConfigError(
                f"--platform-opt cpu.isa={self.options['isa']}: no such instruction set",
                remedy=f"choose one of auto, {', '.join(native.ISAS)}",
            )
        if self.options["kernels"] == "native" and (reason := native.why_not()) is not None:
            raise ConfigError("--platform-opt cpu.kernels=native: there are none here", remedy=reason)

    @property
    def is_native(self) -> bool:
        """Whether the library's kernels are used."""
        return self.options["kernels"] != "torch" and native.why_not() is None

    def probe(self) -> Sequence[DeviceInfo]:
        return (self._info(),)

    def device(self, index: int = 0) -> Device:
        if index:
            raise ConfigError(f"the CPU platform has one device, 0: there is no device {index}")
        if self.is_native:
            native.set_isa(self.options["isa"])
        return CPUDevice(
            info=self._info(),
            threads=self.options["threads"] or self.cpu.physical_cores,
            cores=self.cpu.cores if self.options["bind"] == "on" else (),
        )

    def rank_device(self, rank: int, size: int) -> Device:
        """The host's memory with a rank's part of its cores, which it is bound to; nodes are parted first."""
        if size > self.cpu.physical_cores:
            raise ConfigError(
                f"{size} ranks on {self.cpu.physical_cores} cores: each needs one",
                remedy=f"pass --tensor-parallel-size {self.cpu.physical_cores} or less",
            )
        device = self.device()
        assert isinstance(device, CPUDevice)
        cores = part_of(self.cpu.cores, rank, size)
        device.is_rank = True
        device.cores, device.threads = cores, self.options["threads"] or len(cores) or self.cpu.physical_cores // size
        return device

    def collectives(self, device: Device, *, rank: int, size: int, address: str) -> Collectives:
        if size == 1 or not self.is_native:
            return Platform.collectives(self, device, rank=rank, size=size, address=address)
        from .collectives import NativeCollectives

        return NativeCollectives(rank=rank, size=size, address=address)

    def capabilities(self, device: Device) -> Capabilities:
        inplace = self.options["gguf"] == "inplace" or (self.is_native and self.options["gguf"] == "auto")
        return capabilities(self.cpu, is_native=self.is_native, inplace=inplace)

    def register_ops(self, table: OpTable, device: Device) -> None:
        from .ops.offers import register

        if self.options["kernels"] == "auto" and (reason := native.why_not()) is not None:
            LOG.warning("%s", reason)
        options = self.options
        register(table, device, self.cpu, weights=options["weights"], gguf=options["gguf"], is_native=self.is_native)

    def execution(self, device: Device) -> Execution:
        return CPUExecution(device, tape=self.is_native)

    def adjustments(self, requested: Mapping[str, Any], model: ModelSpec) -> Sequence[Adjustment]:
        return tuple(adjustments(self.cpu, requested, is_native=self.is_native))

    def _info(self) -> DeviceInfo:
        return DeviceInfo(id=0, name=self.cpu.name, arch=self.cpu.arch, memory=Device().memory().total)
