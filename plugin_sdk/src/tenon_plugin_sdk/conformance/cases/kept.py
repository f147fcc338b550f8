"""Keys and values, and what a KV cache keeps of them by its type."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.quantized_kv import dequantize_heads, quantize_heads
from tenon_platforms.ops.quantized_reference import INT8_MAX
from tenon_platforms.torch_dtypes import rounded_to, to_torch

ONE_BYTE = (DType.FLOAT8_E4M3, DType.INT8)  # of what a cache may be


def kept(values: Tensor, kv: DType) -> Tensor:
    """Host values [..., dim] as a cache of type `kv` holds them, in its canonical type."""
    return dequantize_heads(quantize_heads(values)) if kv is DType.INT8 else rounded_to(values, to_torch(kv))


def draw_kept(random: torch.Generator, shape: tuple[int, ...], dtype: DType, kv: DType, size: float = 1.0) -> Tensor:
    """Host values [..., dim] of `dtype` and some `size`, of either sign; of int8 such as it holds exactly.

    These are whole numbers times a power of two, of which each head's first is +-127, its greatest: no code is near the
    next one, whoever finds the scale. What becomes of other values, `kv_rounding` looks at.
    """
    made = torch.randn(shape, generator=random)
    if kv is not DType.INT8:
        return (made * size).to(to_torch(dtype))
    codes = (made * (INT8_MAX / 3)).round().clamp(-INT8_MAX, INT8_MAX)
    codes[..., :1] = torch.where(made[..., :1] < 0, -INT8_MAX, INT8_MAX)
    step = 2.0 ** torch.randint(-7, -4, (*shape[:-1], 1), generator=random).float()  # the greatest: 1 to 4
    return (codes * step * 2.0 ** round(math.log2(size))).to(to_torch(dtype))
