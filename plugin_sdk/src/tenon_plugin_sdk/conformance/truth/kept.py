"""What a KV cache keeps of keys and values that are given to it, by its type.

int8: codes of one float32 scale for each token's keys or values of a head, `tenon_platforms.ops.quantized_kv`. How the
scale is found may differ by its last bits, and with it the code of a value halfway between two: so these are bounds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.quantized_kv import dequantize_heads, quantize_heads
from tenon_platforms.torch_dtypes import rounded_to, to_torch

from .rounding import U32, Bounded

ONE_BYTE = (DType.FLOAT8_E4M3, DType.INT8)
INT8_MAX = 127.0
SCALE_ULPS = 4.0  # roundings of a scale, of its inverse and of their products


def kept(values: Tensor, kv: DType) -> Tensor:
    """Host values [..., dim] as a cache of type `kv` holds them, in its canonical type."""
    return dequantize_heads(quantize_heads(values)) if kv is DType.INT8 else rounded_to(values, to_torch(kv))


def kept_within(want: Bounded, kv: DType) -> Bounded:
    """What a cache may hold of `want` [..., dim], where it is coded: half a step off. Other types: `want` itself."""
    if kv is not DType.INT8:
        return want
    most = (want.value.abs() + want.error).amax(dim=-1, keepdim=True)
    return Bounded(want.value, want.error + most * (0.5 / INT8_MAX + SCALE_ULPS * U32))


def draw_kept(random: torch.Generator, shape: tuple[int, ...], dtype: DType, kv: DType, size: float = 1.0) -> Tensor:
    """Host values [..., dim] of `dtype` and some `size`, of either sign; of int8 such as it holds exactly.

    These are integers times a power of two, of which each head's largest is 127: no code is near the next one.
    """
    made = torch.randn(shape, generator=random)
    if kv is not DType.INT8:
        return (made * size).to(to_torch(dtype))
    codes = (made * 40).round().clamp(-INT8_MAX, INT8_MAX)
    codes[..., :1] = torch.where(made[..., :1] < 0, -INT8_MAX, INT8_MAX)
    step = 2.0 ** torch.randint(-7, -4, (*shape[:-1], 1), generator=random).float()
    return (codes * step * 2.0 ** round(math.log2(size))).to(to_torch(dtype))
