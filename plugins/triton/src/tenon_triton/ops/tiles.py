"""x W^T for few rows on the matrix unit: every weight tile read once, the sum over `in` split among programs.

Split sums are kept in float32 and added by whichever program of a tile arrives last, always in the order of the
splits: deterministic, in one launch. Its counters return to zero, so that one buffer serves every launch of a queue.
Swapped, the weight is the left side of the product: 64 rows and more, as large matrix units want. FP8 weights meet FP8
activations as they are, are widened to the activations' type on the way, or the activations are quantized on it: then
each tile of a token has a scale of its own, finer than one for the whole token. Paired: the weight is gate over up, a
program owns the same columns of both and ends with activation(gate) * up. Normed: x and a residual are added and meet
the norm's weight on the way, their squares are summed beside the product, which is divided by their mean's root last.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import early
from ..early import fetch, trigger, wait
from ..facts import CACHE_LINE
from .float8 import row_scale, to_float8
from .linear_table import Tiles
from .mlp import gated
from .prologue import AddNorm, add_tile, row_factor

MOST_COUNTERS = 1 << 16
AHEAD: tl.constexpr = tl.constexpr(2)  # tiles of the weight that are fetched before x is complete: more gain nothing


# e4m3 is bfloat16 without its upper exponent bits: moved to their places, four bytes are four numbers 2^120 too small
FROM_E4M3: tl.constexpr = tl.constexpr("""
{
    .reg .b32 low, high, scale;
    mov.b32 scale, 0x7b807b80;
    prmt.b32 low, $2, 0, 0x1404;
    prmt.b32 high, $2, 0, 0x3424;
    shr.b32 $0, low, 4;
    shr.b32 $1, high, 4;
    and.b32 $0, $0, 0x07f007f0;
    and.b32 $1, $1, 0x07f007f0;
    lop3.b32 low, low, 0x80008000, $0, 0xea;
    lop3.b32 high, high, 0x80008000, $1, 0xea;
    mul.bf16x2 $0, low, scale;
    mul.bf16x2 $1, high, scale;
}
""")


@triton.jit
def _rows_of(weight, w_row, place, in_features, DTYPE: tl.constexpr, EVEN: tl.constexpr, UNPACK: tl.constexpr):
    """A tile [N, K] of the weight in the type it is multiplied in. UNPACK: FP8 to bfloat16 four at a time."""
    if EVEN:
        held = tl.load(weight + w_row[:, None] + place[None, :])
    else:
        held = tl.load(weight + w_row[:, None] + place[None, :], mask=(place < in_features)[None, :], other=0.0)
    if UNPACK:  # the device's own conversions take the way through float16, at a fraction of the memory's speed
        held = held.to(tl.uint8, bitcast=True)
        held = tl.inline_asm_elementwise(FROM_E4M3, "=&r,=&r,r", [held], dtype=tl.bfloat16, is_pure=True, pack=4)
    return held.to(DTYPE)


@triton.jit
def _product(taken, unit, held, sums, SWAP: tl.constexpr, PRECISION: tl.constexpr, QUANTIZE: tl.constexpr):
    """sums plus the product of a tile; unit [M]: what quantized tokens are multiples of."""
    if QUANTIZE:
        zeros = tl.zeros_like(sums)
        if SWAP:
            sums += tl.dot(held, tl.trans(taken), zeros) * unit[None, :]
        else:
            sums += tl.dot(taken, tl.trans(held), zeros) * unit[:, None]
    elif SWAP:
        sums = tl.dot(held, tl.trans(taken), sums, input_precision=PRECISION)
    else:
        sums = tl.dot(taken, tl.trans(held), sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=["tokens"])
def _tiles(
    x,
    weight,
    x_scale,
    scale,
    bias,
    y,
    parts,
    counters,
    residual,
    gain,
    total,
    squares_of,
    tokens,
    out_features,
    in_features,
    x_stride,
    residual_stride,
    eps,
    shrink,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN: tl.constexpr,
    SWAP: tl.constexpr,
    PRECISION: tl.constexpr,
    PAIRED: tl.constexpr,
    KIND: tl.constexpr,
    LINES: tl.constexpr,
    UNPACK: tl.constexpr,
    QUANTIZE: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    column_tile, row_tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = row_tile * M + tl.arange(0, M)
    column = column_tile * N + tl.arange(0, N)
    known = token < tokens
    there = column < out_features
    depth = tl.arange(0, K)
    share = tl.cdiv(tl.cdiv(in_features, K), SPLITS) * K
    begin = split * share
    end = tl.minimum(begin + share, in_features)
    x_row = tl.where(known, token, 0).to(tl.int64) * x_stride
    w_row = tl.where(there, column, 0).to(tl.int64) * in_features
    second = weight
    if PAIRED:
        second = weight + tl.cast(out_features, tl.int64) * in_features
    ahead = begin + tl.arange(0, AHEAD * LINES) * (K // LINES)
    ahead = tl.minimum(ahead, in_features - 1)
    fetch(weight + w_row[:, None] + ahead[None, :], EARLY)
    if PAIRED:
        fetch(second + w_row[:, None] + ahead[None, :], EARLY)
    wait(EARLY)
    if SWAP:
        sums = tl.zeros([N, M], tl.float32)
    else:
        sums = tl.zeros([M, N], tl.float32)
    others = sums
    squares = tl.zeros([M, K // 8], tl.float32)
    r_row, mine = x_row, begin + column_tile * K
    if residual is not None:
        r_row = tl.where(known, token, 0).to(tl.int64) * residual_stride
    for start in range(begin, end, K):
        place = start + depth
        if EVEN:
            taken = tl.load(x + x_row[:, None] + place[None, :])  # [M, K]; rows past the last repeat row 0
        else:
            taken = tl.load(x + x_row[:, None] + place[None, :], mask=(place < in_features)[None, :], other=0.0)
        if residual is not None:  # the programs of a row read the same tiles: they take turns at storing the sum
            stores = known & (start == mine)
            mine += tl.where(start == mine, tl.num_programs(0) * K, 0)
            taken, squares = add_tile(
                taken, residual + r_row[:, None] + place[None, :], gain + place,
                total + token.to(tl.int64) * in_features, place, squares, stores, in_features, EVEN,
            )  # fmt: skip
        unit = eps
        if QUANTIZE:
            wide = taken.to(tl.float32)
            unit = row_scale(tl.max(tl.abs(wide), 1))
            taken = to_float8(wide, unit[:, None])
        held = _rows_of(weight, w_row, place, in_features, taken.dtype, EVEN, UNPACK)
        sums = _product(taken, unit, held, sums, SWAP, PRECISION, QUANTIZE)
        if PAIRED:
            held = _rows_of(second, w_row, place, in_features, taken.dtype, EVEN, UNPACK)
            others = _product(taken, unit, held, others, SWAP, PRECISION, QUANTIZE)
    if SWAP:
        sums, others = tl.trans(sums), tl.trans(others)
    target = token.to(tl.int64)[:, None] * out_features + column[None, :]
    mask = known[:, None] & there[None, :]
    found_squares = tl.sum(squares, 1)
    if residual is not None:  # noqa: SIM102  each line is compiled or not
        if SPLITS == 1:
            factor = row_factor(found_squares, in_features, eps, shrink)[:, None]
            sums, others = sums * factor, others * factor
    if PAIRED:
        dtype = y.dtype.element_ty
        up = out_features + column
        sums = _scaled(sums, x_scale, scale, bias, token, column, known, there).to(dtype).to(tl.float32)
        others = _scaled(others, x_scale, scale, bias, token, up, known, there).to(dtype).to(tl.float32)
        tl.store(y + target, gated(sums, others, dtype, KIND).to(dtype), mask=mask)
    elif SPLITS > 1:
        size = tokens.to(tl.int64) * out_features
        tl.store(parts + split * size + target, sums, mask=mask)
        if residual is not None:
            own = (split * tl.num_programs(0) + column_tile) * tokens
            tl.store(squares_of + own + token, found_squares, mask=known)  # [splits, column tiles, tokens]
        tl.debug_barrier()  # all threads' parts are written before the program says so
        tile = row_tile * tl.num_programs(0) + column_tile
        arrived = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            sums = tl.zeros([M, N], tl.float32)
            for part in tl.static_range(SPLITS):
                sums += tl.load(parts + part * size + target, mask=mask, other=0.0, cache_modifier=".cg")
            tl.store(counters + tile, 0)
            if residual is not None:
                found_squares = tl.zeros([M], tl.float32)
                for part in tl.static_range(SPLITS):
                    theirs = (part * tl.num_programs(0) + column_tile) * tokens
                    found_squares += tl.load(squares_of + theirs + token, mask=known, other=0.0, cache_modifier=".cg")
                sums *= row_factor(found_squares, in_features, eps, shrink)[:, None]
            found = _scaled(sums, x_scale, scale, bias, token, column, known, there)
            tl.store(y + target, found.to(y.dtype.element_ty), mask=mask)
    else:
        found = _scaled(sums, x_scale, scale, bias, token, column, known, there)
        tl.store(y + target, found.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _scaled(sums, x_scale, scale, bias, token, column, known, there):
    """sums [M, N] times both scales, plus the bias."""
    if x_scale is not None:
        sums *= tl.load(x_scale + token, mask=known, other=0.0)[:, None]
    if scale is not None:
        sums *= tl.load(scale + column, mask=there, other=0.0)[None, :]
    if bias is not None:
        sums += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    return sums


@cache
def _counters(device: torch.device, queue: int) -> Tensor:
    """Zeroed counters of a queue of a device, whose kernels run one after the other."""
    return torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=device)


def tiles(
    x: Tensor,
    weight: Tensor,
    config: Tiles,
    *,
    x_scale: Tensor | None = None,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    activation: str | None = None,
    norm: AddNorm | None = None,
) -> Tensor:
    """y [tokens, out] of x [tokens, in] and weight [out, in], in `dtype` (x's unless said).

    x_scale: float32 [tokens], of FP8 activations. scale: float32 [out], of an FP8 weight, which is multiplied in x's
    type unless the way quantizes x. activation: the weight is gate over up, and y [tokens, out / 2] = activation(gate)
    * up; sums are not split. norm: of x and its residual is what is multiplied, and their sum is written.
    """
    tokens, in_features = x.shape
    out_features = weight.shape[0] // (2 if activation else 1)
    assert activation is None or config.splits == 1, "a split sum has no end to activate at"
    y = torch.empty((tokens, out_features), dtype=dtype or x.dtype, device=x.device)
    quantizes = config.quantizes and weight.itemsize == 1 and x.itemsize > 1
    grid = (triton.cdiv(out_features, config.n), triton.cdiv(tokens, config.m), config.splits)
    parts = counters = squares = None
    if config.splits > 1:
        parts = torch.empty((config.splits, tokens, out_features), dtype=torch.float32, device=x.device)
        counters = _counters(x.device, early.queue_of(x.device))
        assert grid[0] * grid[1] <= MOST_COUNTERS, "split sums are for few tokens"
        if norm is not None:
            squares = torch.empty((config.splits, grid[0], tokens), dtype=torch.float32, device=x.device)
    _tiles[grid](
        x,
        weight,
        x_scale,
        scale,
        bias,
        y,
        parts,
        counters,
        *((None,) * 3 if norm is None else (norm.residual, norm.gain.scaled, norm.total)),
        squares,
        tokens,
        out_features,
        in_features,
        x.stride(0),
        0 if norm is None else norm.residual.stride(0),
        0.0 if norm is None else norm.eps,
        1.0 if norm is None else norm.gain.shrink,
        M=config.m,
        N=config.n,
        K=config.k,
        SPLITS=config.splits,
        EVEN=in_features % config.k == 0,
        SWAP=config.swap,
        PRECISION="ieee" if x.dtype == torch.float32 else None,
        PAIRED=activation is not None,
        KIND=activation or "",
        UNPACK=weight.itemsize == 1 and x.dtype == torch.bfloat16 and not quantizes and early.is_supported(),
        QUANTIZE=quantizes,
        LINES=max(1, config.k * weight.element_size() // CACHE_LINE),
        num_warps=config.warps,
        num_stages=config.stages,
        **early.options(),
    )
    return y
