"""`CUDAPlatform`: NVIDIA GPUs, filled into the contract's sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tenon_platforms.adjustments import Adjustment
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device, DeviceInfo
from tenon_platforms.errors import ConfigError
from tenon_platforms.execution import Execution
from tenon_platforms.platform import Platform

from .capabilities import Arch, adjustments, capabilities
from .device import CUDADevice
from .options import CUDAOptions
from .probe import probe

if TYPE_CHECKING:
    from tenon_platforms.model import ModelSpec
    from tenon_platforms.ops.table import OpTable


class CUDAPlatform(Platform):
    """Options, see platform.toml: graphs, graph_rows, graph_tokens, step_tokens, quantize, kv_block_size, kernels,
    attention, kernel_cache.
    """

    name: ClassVar[str] = "cuda"
    contract: ClassVar[str] = ">=0.1,<0.2"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self.settings = CUDAOptions.read(self.options)

    def probe(self) -> Sequence[DeviceInfo]:
        return probe()

    def device(self, index: int = 0) -> Device:
        found = self.probe()
        if found and index >= len(found):
            raise ConfigError(
                f"there is no GPU {index}: this process sees {len(found)}",
                remedy="look at `tenon doctor`, and at the environment variable CUDA_VISIBLE_DEVICES",
            )
        # WSL and Jetson have neither NVML nor the driver's files: the runtime knows their device all the same
        info = found[index] if found else DeviceInfo(id=index, name="NVIDIA GPU")
        return CUDADevice(info=info, torch_device=torch.device("cuda", index))

    def capabilities(self, device: Device) -> Capabilities:
        return capabilities(Arch.of(device), quantize=self.settings.quantize, kernels=self.settings.kernels)

    def register_ops(self, table: OpTable, device: Device) -> None:
        from .ops.offers import register

        register(table, device, Arch.of(device), self.settings)

    def execution(self, device: Device) -> Execution:
        from .execution import CUDAExecution

        return CUDAExecution(device, self.settings, memory=device.memory().total)

    def collectives(self, device: Device, *, rank: int, size: int, address: str) -> Collectives:
        if size == 1:
            return Collectives()
        from .collectives import NCCLCollectives

        return NCCLCollectives(device, rank=rank, size=size, address=address)

    def adjustments(self, requested: Mapping[str, Any], model: ModelSpec) -> Sequence[Adjustment]:
        return tuple(adjustments(requested, self.settings))
