"""The sockets: a device that is the host, three offers, the defaults of everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.device import Device, DeviceInfo
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.platform import Platform

if TYPE_CHECKING:
    from tenon_platforms.ops.table import OpTable


class FrozenPlatform(Platform):
    """Float32 only."""

    name: ClassVar[str] = "frozen"
    contract: ClassVar[str] = ">=0.1,<0.2"

    def device(self, index: int = 0) -> Device:
        return Device(info=DeviceInfo(id=index, name="frozen"), memory_share=0.2)

    def capabilities(self, device: Device) -> Capabilities:
        return Capabilities(
            dtypes=(DType.FLOAT32,),
            kv_dtypes=(DType.FLOAT32,),
            schemes={"dense-*": "native"},
            determinism=Determinism.RUN,
            refused={"structured_outputs": "the device has no masks"},
        )

    def register_ops(self, table: OpTable, device: Device) -> None:
        from .attention import attention
        from .kernels import merged_linear, rms_norm

        table.offer(RMSNormSpec, "frozen.rms_norm", rms_norm)
        table.offer(MergedLinearSpec, "frozen.linear", merged_linear, priority=10)
        table.offer(AttentionSpec, "frozen.attention", lambda spec: attention(spec, device))
