"""Rows as float8_e4m3fn with one float32 scale a row: what FP8 linears multiply.

    scale = max(max(|row|) / 448, 1e-37) (1 for a row of zeros);   q = round(row / scale);   row ~ q * scale

448 is the type's largest finite value; it has no infinity. Dynamic: no calibration, every token has its own scale.
Source: Micikevicius et al. 2022, arXiv 2209.05433. Fused into the norm and the gated activation; alone in `quantize`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import early
from ..early import trigger, wait

FP8_MAX = 448.0
LARGEST: tl.constexpr = tl.constexpr(FP8_MAX)
LEAST_SCALE: tl.constexpr = tl.constexpr(1e-37)  # whose inverse is a number
WHOLE_ROW = 16384  # widest row that is quantized from registers; wider ones are read twice
BLOCK = 4096  # elements of wider rows at a time


class Float8Rows(NamedTuple):
    """values: float8_e4m3fn [rows, width]; scale: float32 [rows]."""

    values: Tensor
    scale: Tensor


@triton.jit
def row_scale(largest):
    """The scale of a row whose greatest magnitude is `largest`, float32."""
    return tl.where(largest > 0, tl.maximum(largest / LARGEST, LEAST_SCALE), 1.0)


@triton.jit
def to_float8(values, scale):
    """float32 values as float8 of `scale`; clamped, since rounding of the quotient may pass the largest value.

    One division a row: with one an element, many rows would wait for arithmetic and not for memory.
    """
    scaled = tl.minimum(tl.maximum(values * (1.0 / scale), -LARGEST), LARGEST)
    return scaled.to(tl.float8e4nv)


@triton.jit
def _quantize_rows(x, values, scale, width, x_stride, WHOLE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    trigger(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    if WHOLE:
        inside = columns < width
        held = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        unit = row_scale(tl.max(tl.abs(held), axis=0))
        tl.store(scale + row, unit)
        tl.store(values + row * width + columns, to_float8(held, unit), mask=inside)
    else:
        largest = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            inside = start + columns < width
            held = tl.load(x + row * x_stride + start + columns, mask=inside, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(held))
        unit = row_scale(tl.max(largest, axis=0))
        tl.store(scale + row, unit)
        for start in range(0, width, BLOCK):
            inside = start + columns < width
            held = tl.load(x + row * x_stride + start + columns, mask=inside, other=0.0).to(tl.float32)
            tl.store(values + row * width + start + columns, to_float8(held, unit), mask=inside)


def empty_rows(rows: int, width: int, like: Tensor) -> Float8Rows:
    """Room for the result."""
    values = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=like.device)
    return Float8Rows(values, torch.empty((rows,), dtype=torch.float32, device=like.device))


def quantize(x: Tensor) -> Float8Rows:
    """Quantize x, float [rows, width] with contiguous rows, in one launch."""
    rows, width = x.shape
    found = empty_rows(rows, width, x)
    if rows:
        whole = width <= WHOLE_ROW
        block = triton.next_power_of_2(width) if whole else BLOCK
        _quantize_rows[(rows,)](
            x,
            found.values,
            found.scale,
            width,
            x.stride(0),
            WHOLE=whole,
            BLOCK=block,
            num_warps=warps_of(block) if block <= BLOCK else 8,  # two wide rows are at work beside each other
            **early.options(),
        )
    return found


def warps_of(block: int) -> int:
    """Warps for a program that holds `block` elements of a row: 8 elements a thread where there are as many."""
    return max(1, min(16, block // 256))
