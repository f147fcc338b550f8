"""`DType` to torch and back. Imports torch; everything that must not, uses `dtypes` alone."""

from __future__ import annotations

import torch

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


def from_torch(dtype: torch.dtype) -> DType:
    """The `DType` of a torch dtype; raises KeyError for one the contract does not name."""
    return _FROM_TORCH[dtype]
