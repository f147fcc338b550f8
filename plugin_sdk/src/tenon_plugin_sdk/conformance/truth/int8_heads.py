"""What a KV cache of int8 may hold: codes of one float32 scale for each token's keys or values of a head.

How the scale is found may differ by its last bits, and with it the code of a value halfway between two: so these are
bounds. Source of the format: `tenon_platforms.ops.quantized_kv`.
"""

from __future__ import annotations

from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.quantized_reference import INT8_MAX

from .rounding import U32, Bounded, tiny

SCALE_ULPS = 4.0  # roundings of a scale, of its inverse and of their products


def kept_within(want: Bounded, kv: DType, dtype: DType) -> Bounded:
    """What a cache may hold of `want` [..., dim], given in `dtype`, where it is coded: half a step off.

    A value that is flushed to zero is one of `dtype`, a scale that is flushed is worth 127 times as much. Other types:
    `want` itself.
    """
    if kv is not DType.INT8:
        return want
    most = (want.value.abs() + want.error).amax(dim=-1, keepdim=True)
    return Bounded(want.value, want.error + most * (0.5 / INT8_MAX + SCALE_ULPS * U32) + _flushed(dtype))


def greatest_kept(values: Tensor, dtype: DType) -> Bounded:
    """The greatest of heads [..., dim] as int8 holds them, [..., 1]: its code is +-127, so that the scale shows."""
    most = values.double().abs().amax(dim=-1, keepdim=True)
    return Bounded(most, SCALE_ULPS * U32 * most + _flushed(dtype))


def _flushed(dtype: DType) -> float:
    return tiny(dtype) + INT8_MAX * tiny(DType.FLOAT32)
