"""`SimPlatform`: the simulated accelerator's sockets, by character.

static: a tracing compiler, strict lattice, asynchronous. dynamic: captured decode steps, asynchronous. minimal: only a
device, everything on reference kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tenon_platforms.adjustments import Adjustment
from tenon_platforms.attention import attention_kernel
from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device, DeviceInfo
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.execution import ExecutableKind, Execution
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.model import ModelSpec
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.rows import RowWritesSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.platform import Platform

from .attention import KERNEL_BLOCK, SimAttention
from .collectives import SimCollectives
from .device import SimDevice
from .execution import SimExecution
from .ops.moe import moe_layer
from .ops.rows import row_writes
from .options import SimOptions

ATTENTION_FEATURES = {
    "attention.sliding_window",
    "attention.soft_cap",
    "attention.sinks",
    "attention.bidirectional",
}
KINDS = {
    "static": ExecutableKind.TRACE,
    "dynamic": ExecutableKind.CAPTURE,
    "minimal": ExecutableKind.EAGER,
}


class SimPlatform(Platform):
    """Only ever selected by name."""

    name: ClassVar[str] = "sim"
    contract: ClassVar[str] = ">=0.1,<0.2"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self.settings = SimOptions.read(self.options)
        self.kind = KINDS[self.settings.character]

    def probe(self) -> Sequence[DeviceInfo]:
        memory = self.settings.memory_mb << 20
        return tuple(
            DeviceInfo(id=index, name="simulated accelerator", uuid=f"sim-{index}", arch="sim", memory=memory)
            for index in range(self.settings.devices)
        )

    def device(self, index: int = 0) -> Device:
        found = self.probe()
        if index >= len(found):
            raise ConfigError(
                f"there is no simulated device {index}: there are {len(found)}",
                remedy="raise --platform-opt sim.devices",
            )
        return SimDevice(info=found[index], options=self.settings, is_async=self.kind is not ExecutableKind.EAGER)

    def capabilities(self, device: Device) -> Capabilities:
        kv_dtypes = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3)
        return Capabilities(kv_dtypes=kv_dtypes, executable=self.kind, determinism=Determinism.RUN)

    def register_ops(self, table: OpTable, device: Device) -> None:
        if self.kind is ExecutableKind.EAGER:
            return
        assert isinstance(device, SimDevice)

        def attention(spec: AttentionSpec) -> Kernel | No:
            return attention_kernel("sim.paged", SimAttention(spec, device))

        table.offer(AttentionSpec, "sim.paged", attention, features=ATTENTION_FEATURES)
        table.offer(MoESpec, "sim.all_experts", moe_layer)
        table.offer(RowWritesSpec, "sim.queued", row_writes(device))

    def execution(self, device: Device) -> Execution:
        if self.kind is ExecutableKind.EAGER:
            return Execution(device)
        assert isinstance(device, SimDevice)
        return SimExecution(device, self.kind)

    def collectives(self, device: Device, *, rank: int, size: int, address: str) -> Collectives:
        if size == 1:
            return Collectives()
        assert isinstance(device, SimDevice)
        return SimCollectives(device, rank=rank, size=size, address=address)

    def adjustments(self, requested: Mapping[str, Any], model: ModelSpec) -> Sequence[Adjustment]:
        if self.kind is ExecutableKind.EAGER:
            return ()
        wanted: dict[str, tuple[Any, str]] = {}
        block = requested.get("block_size")
        if block is not None and block % KERNEL_BLOCK:
            rounded = -(-block // KERNEL_BLOCK) * KERNEL_BLOCK
            wanted["block_size"] = (rounded, f"blocks are multiples of {KERNEL_BLOCK} tokens here")
        if self.kind is ExecutableKind.TRACE:
            if requested.get("enforce_eager"):
                wanted["enforce_eager"] = (False, "this device runs compiled executables only")
            if requested.get("enable_chunked_prefill") is False:
                wanted["enable_chunked_prefill"] = (True, "prompts enter in chunks of a fixed size")
        return [
            Adjustment(
                field=name,
                requested=requested[name],
                effective=effective,
                reason=reason,
                severity="performance",
                who=self.name,
            )
            for name, (effective, reason) in wanted.items()
        ]
