"""Tiles of a decode's context cut into strands, each with a softmax of its own, joined once at the end.

    tile   | strand 0 | strand 1 | strand 2 | strand 3 |     as many strands as warps
    scores, peak, sum and mixed values of a strand stay in its warp; no warp waits for another in the loop

Where all warps share one softmax, every tile costs reductions and exchanges between warps: a row of few tokens waits
for these and not for memory. Products are batched, one of a batch for each warp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import LOG2_E, soft_capped


@triton.jit
def _blocks(table, start, last, STRANDS: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr):
    """Block numbers of a tile's tokens: one a strand where a strand lies in one block, else [STRANDS, WIDTH]."""
    place = start + tl.arange(0, STRANDS)[:, None] * WIDTH
    if PAGE % WIDTH != 0:
        place += tl.arange(0, WIDTH)[None, :]
    return tl.load(table + tl.minimum(place, last) // PAGE)


@triton.jit
def attend_strands(
    q,  # [M, DIM_PAD]
    peak,  # [M]
    total,  # [M]
    mixed,  # [M, DIM_PAD]
    keys,
    values,
    table,
    block_stride,
    begin,
    end,
    length,
    first_alive,
    scale,
    cap,
    SOFT_CAP: tl.constexpr,
    STRANDS: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    """The state with tokens [begin, end) of one row folded in; nothing before `first_alive` is read."""
    WIDTH: tl.constexpr = TILE // STRANDS
    M: tl.constexpr = q.shape[0]
    dims = tl.arange(0, DIM_PAD)[None, None, :]
    queries = tl.broadcast_to(q[None, :, :], [STRANDS, M, DIM_PAD])
    peaks = tl.full([STRANDS, M], float("-inf"), tl.float32)
    totals = tl.zeros([STRANDS, M], tl.float32)
    found = tl.zeros([STRANDS, M, DIM_PAD], tl.float32)
    factor = LOG2_E if SOFT_CAP else scale * LOG2_E
    blocks = _blocks(table, begin, length - 1, STRANDS, WIDTH, PAGE)
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, STRANDS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        offsets = (blocks.to(tl.int64) * block_stride + (place % PAGE) * DIM)[:, :, None] + dims
        blocks = _blocks(table, start + TILE, length - 1, STRANDS, WIDTH, PAGE)
        alive = (place < end) & (place >= first_alive)
        read = alive[:, :, None]
        if DIM_PAD != DIM:
            read = read & (dims < DIM)
        k = tl.load(keys + offsets, mask=read, other=0.0).to(q.dtype)  # [STRANDS, WIDTH, DIM_PAD]
        scores = tl.dot(queries, tl.permute(k, (0, 2, 1)), input_precision="ieee")  # [STRANDS, M, WIDTH]
        if SOFT_CAP:
            scores = soft_capped(scores * scale, cap)
        scores = tl.where(alive[:, None, :], scores, float("-inf"))
        higher = tl.maximum(peaks, tl.max(scores, 2) * factor)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores * factor - level[:, :, None])
        decay = tl.exp2(peaks - level)
        totals = totals * decay + tl.sum(weights, 2)
        v = tl.load(values + offsets, mask=read, other=0.0).to(q.dtype)
        found = tl.dot(weights.to(q.dtype), v, found * decay[:, :, None], input_precision="ieee")
        peaks = higher
    highest = tl.maximum(peak, tl.max(peaks, 0))
    level = tl.where(highest == float("-inf"), 0.0, highest)
    decay, shares = tl.exp2(peak - level), tl.exp2(peaks - level[None, :])
    total = total * decay + tl.sum(totals * shares, 0)
    mixed = mixed * decay[:, None] + tl.sum(found * shares[:, :, None], 0)
    return highest, total, mixed
