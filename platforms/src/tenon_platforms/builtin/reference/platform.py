"""The reference platform: every op on its reference kernel, on the host. Correct everywhere, fast nowhere."""

from __future__ import annotations

from typing import ClassVar

from ...capabilities import Capabilities, Determinism
from ...device import Device
from ...dtypes import DType
from ...platform import Platform


class ReferencePlatform(Platform):
    """Nothing is overridden but what it may claim."""

    name: ClassVar[str] = "reference"
    contract: ClassVar[str] = ">=0.1,<0.2"

    def capabilities(self, device: Device) -> Capabilities:
        kv_dtypes = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.INT8, DType.FLOAT8_E4M3)
        return Capabilities(kv_dtypes=kv_dtypes, determinism=Determinism.BATCH)
