"""Integer weights of quantized checkpoints as GGML blocks of 32, which the native library computes on.

    4 bits             Q4_0  d (q - 8)         the codes as they are
    4 bits, zeros      Q5_0  d (q - 16)        q = code - zero + 16, which 5 bits hold
    8 bits             Q8_0  d q               q = code - 128
    int8 a channel     Q8_0  d q               the codes as they are

A block's d is its group's scale as a float16, where that is the same number to a part in 1,024: the scales of AutoGPTQ
and AutoAWQ are float16, llm-compressor's bfloat16. Everything else is expanded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tenon_platforms.ops.linear import WeightScheme
from tenon_platforms.ops.quantized import Int8Channel, IntGroups
from tenon_platforms.ops.quantized_reference import unpacked
from tenon_platforms.ops.weights import PartTensors

BLOCK = 32
LOST = 2.0**-10  # of a scale, at most


def block_type(scheme: WeightScheme, columns: int) -> str | None:
    """The GGML type that weights of `columns` become, or None: they are expanded."""
    if columns % BLOCK:
        return None
    if isinstance(scheme, Int8Channel):
        return "Q8_0"
    if not isinstance(scheme, IntGroups) or scheme.ordered or scheme.group_size % BLOCK:
        return None
    if scheme.bits == 4:
        return "Q5_0" if scheme.zeros else "Q4_0"
    return None if scheme.zeros else "Q8_0"


def blocks_of(scheme: WeightScheme, tensors: PartTensors, columns: int) -> Tensor | None:
    """uint8 [out, bytes of a row] in the blocks of `block_type`, or None where a scale is no float16."""
    kind = block_type(scheme, columns)
    scale = tensors["scale"]
    half = scale.half()
    if kind is None or not bool(((half.float() - scale.float()).abs() <= LOST * scale.float().abs()).all()):
        return None
    rows, count = len(scale), columns // BLOCK
    if isinstance(scheme, IntGroups):
        group = torch.arange(count) * BLOCK // (scheme.group_size or columns)  # of each block
        codes = unpacked(scheme, tensors["weight"]).view(rows, count, BLOCK)
        scales = half.index_select(1, group)
        if scheme.zeros:
            zero = tensors["zero"].index_select(1, group)[..., None]
            return _joined(scales, _five_bits(codes + 16 - zero))
        if scheme.bits == 4:
            return _joined(scales, _nibbles(codes))
        return _joined(scales, codes ^ 128)  # code - 128 as the byte of an int8
    codes = tensors["weight"].view(torch.uint8).view(rows, count, BLOCK)
    return _joined(half.view(rows, 1).expand(rows, count), codes)


def _joined(scales: Tensor, data: Tensor) -> Tensor:
    """[rows, bytes] of float16 scales [rows, blocks] and what follows each, uint8 [rows, blocks, bytes]."""
    head = scales.contiguous().view(torch.uint8).view(*scales.shape, 2)
    return torch.cat((head, data), dim=-1).flatten(1)


def _nibbles(codes: Tensor) -> Tensor:
    """Element i low and i + 16 high."""
    low, high = codes.chunk(2, dim=-1)
    return low | (high << 4)


def _five_bits(codes: Tensor) -> Tensor:
    """The fifth bits, bit i of four bytes element i's, then the rest as nibbles."""
    fifth = (codes >> 4).view(*codes.shape[:-1], 4, 8) << torch.arange(8, dtype=torch.uint8)
    return torch.cat((fifth.sum(-1, dtype=torch.uint8), _nibbles(codes & 15)), dim=-1)
