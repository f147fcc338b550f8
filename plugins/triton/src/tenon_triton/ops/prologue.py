"""The residual add and RMS norm in front of a product, done where its tiles of x are read.

    sum = x + residual (rounded to their type);  f = 1 / (shrink * sqrt(mean(sum^2) + eps))
    y   = f * ((sum * gain * shrink) W^T)

A row's f is known when its last tile has been read, so it meets the product's sums. `sum * gain` is rounded once where
the parts round the quotient and then its product. Every program of a row adds it anew: that is cheap for few rows, and
costs no launch. The sum is written beside what was read, which other programs still read: never in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Gain(NamedTuple):
    """A norm's weight [hidden] as stored, to which `offset` is added, and as tiles multiply by it.

    scaled: float32, (stored + offset) * shrink. shrink: a power of two, so that no product with a sum overflows.
    """

    stored: Tensor
    offset: float
    scaled: Tensor
    shrink: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNorm:
    """residual: [tokens, hidden] with contiguous rows. total: [tokens, hidden], written: neither x nor the residual."""

    residual: Tensor
    total: Tensor
    gain: Gain
    eps: float


def gain_of(stored: Tensor, offset: float) -> Gain:
    """What is made of a norm's weight when it is loaded."""
    shrink = shrink_of(stored, offset)
    return Gain(stored=stored, offset=offset, scaled=(stored.float() + offset) * shrink, shrink=shrink)


def shrink_of(gain: Tensor, offset: float) -> float:
    """1 unless `gain` is float16, whose largest number is near: then what brings all gains to at most 1."""
    if gain.dtype != torch.float16 or not gain.numel():
        return 1.0
    largest = float((gain.float() + offset).abs().max())
    return 2.0 ** -math.ceil(math.log2(largest)) if 1.0 < largest < math.inf else 1.0


@triton.jit
def add_tile(
    taken,  # [M, K]
    more,  # pointers to the residual's tile
    gain,  # pointers to float32 [K]
    total,  # pointers to the rows' first columns [M]
    place,  # columns [K]
    squares,  # [M, K // 8]
    stores,  # whether this program stores a row's sum [M]
    width,
    EVEN: tl.constexpr,
):
    """(the sum times the gain in x's type, squares of the sum on top of `squares`)."""
    dtype = taken.dtype
    if EVEN:
        added = taken.to(tl.float32) + tl.load(more).to(tl.float32)
        gains = tl.load(gain)
        keeps = stores[:, None]
    else:
        inside = place < width
        added = taken.to(tl.float32) + tl.load(more, mask=inside[None, :], other=0.0).to(tl.float32)
        gains = tl.load(gain, mask=inside, other=0.0)
        keeps = stores[:, None] & inside[None, :]
    rounded = added.to(dtype)
    tl.store(total[:, None] + place[None, :], rounded, mask=keeps)
    wide = rounded.to(tl.float32)
    squares += tl.sum(tl.reshape(wide * wide, [squares.shape[0], squares.shape[1], 8]), 2)  # stays in its threads
    return (wide * gains[None, :]).to(dtype), squares


@triton.jit
def row_factor(squares, width, eps, shrink):
    """What a row's products are multiplied by, of the sum of its squares."""
    return tl.rsqrt(squares / width + eps) / shrink
