"""The residual add and RMS norm, then x W^T, for very few rows in one launch.

    program p:  [first rows of W]  wait  [x + residual, norm: once, in registers]  rows p, p + programs, ... of W

A program normalizes all rows of x by itself, rounding where the norm's own kernel does, and walks over TURNS times ROWS
rows of the weight, of which the next are on their way while it multiplies. The first program writes the sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import early
from ..early import trigger, wait
from .gemv import store_row
from .linear_table import NormedGemv
from .norm import WIDEST_BLOCK, normalized
from .prologue import AddNorm

WIDEST = WIDEST_BLOCK


@triton.jit
def _normed_row(x, residual, total, gain, column, inside, stores, hidden, eps, OFFSET: tl.constexpr):
    """One row of x and the residual, added and normalized, float32 [BLOCK]."""
    dtype = x.dtype.element_ty
    held = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    more = tl.load(residual + column, mask=inside, other=0.0).to(tl.float32)
    rounded = (held + more).to(dtype)
    tl.store(total + column, rounded, mask=inside & stores)
    wide = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, axis=0) / hidden + eps)
    return normalized(wide, inverse, gain, dtype, OFFSET)


@triton.jit
def _lines(weight, first, column, inside, rows, width, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """Rows first.. of the weight, zero past its last: [ROWS, BLOCK]."""
    row = first + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    if not EVEN:
        there = there & inside[None, :]
    return tl.load(weight + row.to(tl.int64)[:, None] * width + column[None, :], mask=there, other=0.0)


@triton.jit
def _normed_gemv(
    x,
    residual,
    gain,
    total,
    weight,
    scale,
    bias,
    y,
    out_features,
    hidden,
    x_stride,
    residual_stride,
    eps,
    OFFSET: tl.constexpr,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    PAIRED: tl.constexpr,
    KIND: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    first = tl.program_id(0) * ROWS
    step = tl.num_programs(0) * ROWS
    second = weight
    held = _lines(weight, first, column, inside, out_features, hidden, ROWS, EVEN)
    held2 = held
    if PAIRED:
        second = weight + tl.cast(out_features, tl.int64) * hidden
        held2 = _lines(second, first, column, inside, out_features, hidden, ROWS, EVEN)
    gains = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    wait(EARLY)
    stores = tl.program_id(0) == 0
    row0 = _normed_row(x, residual, total, gains, column, inside, stores, hidden, eps, OFFSET)
    row1, row2, row3 = row0, row0, row0
    if M > 1:
        row1 = _normed_row(
            x + x_stride, residual + residual_stride, total + hidden, gains, column, inside, stores, hidden, eps, OFFSET
        )
    if M > 2:
        row2 = _normed_row(
            x + 2 * x_stride, residual + 2 * residual_stride, total + 2 * hidden, gains, column, inside, stores, hidden,
            eps, OFFSET,
        )  # fmt: skip
    if M > 3:
        row3 = _normed_row(
            x + 3 * x_stride, residual + 3 * residual_stride, total + 3 * hidden, gains, column, inside, stores, hidden,
            eps, OFFSET,
        )  # fmt: skip
    for turn in range(tl.cdiv(out_features - first, step)):
        start = first + turn * step
        row = start + tl.arange(0, ROWS)
        following = _lines(weight, start + step, column, inside, out_features, hidden, ROWS, EVEN)
        following2 = following
        if PAIRED:
            following2 = _lines(second, start + step, column, inside, out_features, hidden, ROWS, EVEN)
        wide, wide2 = held.to(tl.float32), held2.to(tl.float32)
        _store_row(y, 0, wide, wide2, row0, scale, bias, row, out_features, PAIRED, KIND)
        if M > 1:
            _store_row(y, 1, wide, wide2, row1, scale, bias, row, out_features, PAIRED, KIND)
        if M > 2:
            _store_row(y, 2, wide, wide2, row2, scale, bias, row, out_features, PAIRED, KIND)
        if M > 3:
            _store_row(y, 3, wide, wide2, row3, scale, bias, row, out_features, PAIRED, KIND)
        held, held2 = following, following2


@triton.jit
def _store_row(
    y,
    token: tl.constexpr,
    wide,
    wide2,
    normed,
    scale,
    bias,
    row,
    out_features,
    PAIRED: tl.constexpr,
    KIND: tl.constexpr,
):
    """Some of the weight's rows times one row of x."""
    found = tl.sum(wide * normed[None, :], axis=1)
    up = found
    if PAIRED:
        up = tl.sum(wide2 * normed[None, :], axis=1)
    store_row(y, token, found, up, scale, bias, row, out_features, PAIRED, KIND)


def normed_gemv(
    x: Tensor,
    weight: Tensor,
    config: NormedGemv,
    norm: AddNorm,
    *,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """y of the norm of x [tokens, hidden] and its residual, 1 to `gemv.MOST_TOKENS` rows of at most WIDEST columns.

    weight: [out, hidden]; scale: float32 [out] of an FP8 weight. activation: the weight is gate over up, and y is
    [tokens, out / 2] = activation(gate) * up. `norm.total` is written.
    """
    tokens, hidden = x.shape
    out_features = weight.shape[0] // (2 if activation else 1)
    y = torch.empty((tokens, out_features), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(hidden)
    _normed_gemv[(triton.cdiv(out_features, config.rows * config.turns),)](
        x,
        norm.residual,
        norm.gain.stored,
        norm.total,
        weight,
        scale,
        bias,
        y,
        out_features,
        hidden,
        x.stride(0),
        norm.residual.stride(0),
        norm.eps,
        OFFSET=norm.gain.offset,
        M=tokens,
        ROWS=config.rows,
        BLOCK=block,
        EVEN=hidden == block,
        PAIRED=activation is not None,
        KIND=activation or "",
        num_warps=config.warps,
        **early.options(),
    )
    return y
