"""A token's keys or values of one head as int8 codes and their scale: what a KV cache of int8 means.

scale = max|x| / 127 in float32, codes = x / scale rounded to nearest even; of zeros all is zero. A head with a value
that is not finite has a scale that is no number, so that what reads it is none either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .quantized_reference import INT8_MAX

SCALE_BYTES = 4


def quantize_heads(x: Tensor) -> Tensor:
    """int8 [..., dim + 4] of floats x [..., dim]: the codes, then the scale, a float32 in the host's order of bytes."""
    wide = x.float()
    scale = wide.abs().amax(dim=-1, keepdim=True) / INT8_MAX + (wide - wide).sum(dim=-1, keepdim=True)
    codes = (wide / scale).nan_to_num(0.0, 0.0, 0.0).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
    return torch.cat((codes, scale.view(torch.int8)), dim=-1)


def dequantize_heads(stored: Tensor) -> Tensor:
    """float32 [..., dim] of `quantize_heads`'s result."""
    scale = stored[..., -SCALE_BYTES:].contiguous().view(torch.float32)  # [..., 1]
    return stored[..., :-SCALE_BYTES].float() * scale
