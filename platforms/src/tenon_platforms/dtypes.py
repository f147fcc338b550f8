"""`DType`: element types by name, so that specs, plans and non-torch backends need no torch.

`tenon_platforms.torch_dtypes` maps them to torch; nothing here imports it.
"""

from __future__ import annotations

from enum import Enum


class DType(str, Enum):
    """An element type. The value is the name used in specs, plans, flags and messages."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    FLOAT8_E4M3 = "float8_e4m3"
    FLOAT8_E5M2 = "float8_e5m2"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    def __str__(self) -> str:
        return self.value

    @property
    def num_bytes(self) -> int:
        """Bytes of one element."""
        return _NUM_BYTES[self]

    @property
    def is_floating(self) -> bool:
        """Whether this is a floating-point type."""
        return self.value.startswith(("float", "bfloat"))


_NUM_BYTES = {
    DType.FLOAT32: 4,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.FLOAT64: 8,
    DType.FLOAT8_E4M3: 1,
    DType.FLOAT8_E5M2: 1,
    DType.INT64: 8,
    DType.INT32: 4,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.BOOL: 1,
}
