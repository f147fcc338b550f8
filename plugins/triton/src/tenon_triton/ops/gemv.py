"""x W^T for very few rows: no matrix unit, every weight read once at the memory's speed.

A program owns ROWS rows of the weight and walks along them in blocks of BLOCK, all rows of x at once; products and sums
in float32. Paired: it owns the same rows of gate and up and ends with activation(gate) * up. FP8 weights are widened
and their scales applied at the end; activations keep their own type, so nothing is quantized on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import early
from ..early import trigger, wait
from .linear_table import Gemv
from .mlp import gated

MOST_TOKENS = 4


@triton.jit
def _block(pointers, inside, EVEN: tl.constexpr):
    if EVEN:
        held = tl.load(pointers)
    else:
        held = tl.load(pointers, mask=inside, other=0.0)
    return held


@triton.jit
def _add(held, x, place, inside, x_stride, sums0, sums1, sums2, sums3, M: tl.constexpr, EVEN: tl.constexpr):
    """One block of the weight's rows times M rows of x, on top of the sums."""
    held = held.to(tl.float32)
    sums0 += held * _block(x + place[None, :], inside[None, :], EVEN).to(tl.float32)
    if M > 1:
        sums1 += held * _block(x + x_stride + place[None, :], inside[None, :], EVEN).to(tl.float32)
    if M > 2:
        sums2 += held * _block(x + 2 * x_stride + place[None, :], inside[None, :], EVEN).to(tl.float32)
    if M > 3:
        sums3 += held * _block(x + 3 * x_stride + place[None, :], inside[None, :], EVEN).to(tl.float32)
    return sums0, sums1, sums2, sums3


@triton.jit
def _dots(
    x,
    weight,
    first,
    out_features,
    in_features,
    x_stride,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Rows [first, first + ROWS) of the weight times M rows of x: four float32 [ROWS], those past M zero.

    A sum of its own for every row of x, in the weight's layout, so that no value moves between threads before the end.
    The first block of the weight is read before x is complete.
    """
    row = tl.minimum(first + tl.arange(0, ROWS), out_features - 1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    lines = weight + row[:, None] * in_features + column[None, :]
    sums0 = tl.zeros([ROWS, BLOCK], tl.float32)
    sums1, sums2, sums3 = sums0, sums0, sums0
    inside = column < in_features
    held = _block(lines, inside[None, :], EVEN)
    wait(EARLY)
    sums0, sums1, sums2, sums3 = _add(held, x, column, inside, x_stride, sums0, sums1, sums2, sums3, M, EVEN)
    for start in range(BLOCK, in_features, BLOCK):
        place = start + column
        inside = place < in_features
        held = _block(lines + start, inside[None, :], EVEN)
        sums0, sums1, sums2, sums3 = _add(held, x, place, inside, x_stride, sums0, sums1, sums2, sums3, M, EVEN)
    return tl.sum(sums0, axis=1), tl.sum(sums1, axis=1), tl.sum(sums2, axis=1), tl.sum(sums3, axis=1)


@triton.jit
def _scaled(found, scale, bias, row, there, DTYPE: tl.constexpr):
    """found * scale + bias, float32 rounded to DTYPE."""
    if scale is not None:
        found *= tl.load(scale + row, mask=there, other=0.0)
    if bias is not None:
        found += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    return found.to(DTYPE).to(tl.float32)


@triton.jit
def store_row(
    y, token: tl.constexpr, found, up, scale, bias, row, out_features, PAIRED: tl.constexpr, KIND: tl.constexpr
):
    dtype = y.dtype.element_ty
    there = row < out_features
    found = _scaled(found, scale, bias, row, there, dtype)
    if PAIRED:
        found = gated(found, _scaled(up, scale, bias, out_features + row, there, dtype), dtype, KIND)
    tl.store(y + token * out_features + row, found.to(dtype), mask=there)


@triton.jit
def _gemv(
    x,
    weight,
    scale,
    bias,
    y,
    out_features,
    in_features,
    x_stride,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    PAIRED: tl.constexpr,
    KIND: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    a0, a1, a2, a3 = _dots(x, weight, first, out_features, in_features, x_stride, M, ROWS, BLOCK, EVEN, EARLY)
    b0, b1, b2, b3 = a0, a1, a2, a3
    if PAIRED:
        second = weight + tl.cast(out_features, tl.int64) * in_features
        b0, b1, b2, b3 = _dots(x, second, first, out_features, in_features, x_stride, M, ROWS, BLOCK, EVEN, EARLY)
    store_row(y, 0, a0, b0, scale, bias, row, out_features, PAIRED, KIND)
    if M > 1:
        store_row(y, 1, a1, b1, scale, bias, row, out_features, PAIRED, KIND)
    if M > 2:
        store_row(y, 2, a2, b2, scale, bias, row, out_features, PAIRED, KIND)
    if M > 3:
        store_row(y, 3, a3, b3, scale, bias, row, out_features, PAIRED, KIND)


def gemv(
    x: Tensor,
    weight: Tensor,
    config: Gemv,
    *,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """y of x [tokens, in], 1 to MOST_TOKENS rows, and weight [out, in]; scale: float32 [out] of an FP8 weight.

    activation: the weight is gate over up, and y is [tokens, out / 2] = activation(gate) * up.
    """
    tokens, in_features = x.shape
    out_features = weight.shape[0] // (2 if activation else 1)
    y = torch.empty((tokens, out_features), dtype=x.dtype, device=x.device)
    block = min(config.block, triton.next_power_of_2(in_features))
    _gemv[(triton.cdiv(out_features, config.rows),)](
        x,
        weight,
        scale,
        bias,
        y,
        out_features,
        in_features,
        x.stride(0),
        M=tokens,
        ROWS=config.rows,
        BLOCK=block,
        EVEN=in_features % block == 0,
        PAIRED=activation is not None,
        KIND=activation or "",
        num_warps=config.warps,
        **early.options(),
    )
    return y
