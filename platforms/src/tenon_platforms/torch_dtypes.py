"""`DType` to torch and back. Imports torch; everything that must not, uses `dtypes` alone."""

from __future__ import annotations

import torch
from torch import Tensor

from .dtypes import DType

_TO_TORCH: dict[DType, torch.dtype] = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT64: torch.float64,
    DType.FLOAT8_E4M3: torch.float8_e4m3fn,
    DType.FLOAT8_E5M2: torch.float8_e5m2,
    DType.INT64: torch.int64,
    DType.INT32: torch.int32,
    DType.INT8: torch.int8,
    DType.UINT8: torch.uint8,
    DType.BOOL: torch.bool,
}
_FROM_TORCH = {value: key for key, value in _TO_TORCH.items()}


def to_torch(dtype: DType) -> torch.dtype:
    """The torch dtype of `dtype`."""
    return _TO_TORCH[dtype]


def rounded_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in `dtype`, to nearest even. float8_e4m3 has no infinity: beyond +-448 they become +-448; NaN stays NaN.

    What a KV cache of that type holds of a key or a value, and codes of activations. Said here, since torch's own cast
    makes NaN of what lies beyond in some versions and on some devices.
    """
    if dtype == torch.float8_e4m3fn and values.dtype != dtype:
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def movable(values: Tensor) -> Tensor:
    """The same memory in a type that torch gathers and scatters on every device: one-byte elements as uint8."""
    return values.view(torch.uint8) if values.element_size() == 1 else values


def from_torch(dtype: torch.dtype) -> DType:
    """The `DType` of a torch dtype; raises KeyError for one the contract does not name."""
    return _FROM_TORCH[dtype]
