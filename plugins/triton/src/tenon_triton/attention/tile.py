"""Pieces every attention kernel shares: one tile of keys and values folded into a running softmax.

State of a program, float32: peak [m] the greatest score so far in log2 units, total [m] the softmax's sum relative to
it, mixed [m, dim] the weighted values. Where nothing was visible yet the peak counts as 0: no -inf minus -inf.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def is_decode(query_starts, row):
    """Whether this row and all before it have one token each, so that row i's is token i. Padding may pass for one."""
    return (tl.load(query_starts + row) == row) & (tl.load(query_starts + row + 1) == row + 1)


@triton.jit
def blocks_of(table, start, last, TILE: tl.constexpr, PAGE: tl.constexpr):
    """Block numbers of tokens start.. : one where the tile lies in one block, else [TILE]. None is read past `last`.

    Callers ask one tile ahead and carry the answer through the loop, so that loads of keys and values depend on nothing
    in their iteration: the compiler then keeps as many of them in flight as the pipeline has stages.
    """
    if PAGE % TILE == 0:
        blocks = tl.load(table + tl.minimum(start, last) // PAGE)
    else:
        blocks = tl.load(table + tl.minimum(start + tl.arange(0, TILE), last) // PAGE)
    return blocks


@triton.jit
def slot_offsets(blocks, start, block_stride, TILE: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr):
    """Offsets of tokens start.. [TILE] in one layer's keys of one head, int64."""
    if PAGE % TILE == 0:  # one contiguous line of TILE * DIM
        offsets = blocks.to(tl.int64) * block_stride + (start % PAGE + tl.arange(0, TILE)) * DIM
    else:
        offsets = blocks.to(tl.int64) * block_stride + ((start + tl.arange(0, TILE)) % PAGE) * DIM
    return offsets


@triton.jit
def load_tile(pointer, offsets, visible, MASKED: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    """[TILE, DIM_PAD] of keys or values; what is not visible is zero, so that no stale NaN meets a weight of 0."""
    dims = tl.arange(0, DIM_PAD)
    pointers = pointer + offsets[:, None] + dims[None, :]
    if MASKED:
        held = tl.load(pointers, mask=visible[:, None] & (dims[None, :] < DIM), other=0.0)
    elif DIM_PAD != DIM:
        held = tl.load(pointers, mask=dims[None, :] < DIM, other=0.0)
    else:
        held = tl.load(pointers)
    return held


@triton.jit
def soft_capped(scores, cap):
    """cap * tanh(scores / cap); exp2 may overflow to inf, which gives cap."""
    return cap - 2.0 * cap / (tl.exp2(scores * (2.0 * LOG2_E / cap)) + 1.0)


@triton.jit
def attend_tile(
    query,  # [M, DIM_PAD]
    peak,  # [M]
    total,  # [M]
    mixed,  # [M, DIM_PAD]
    blocks,
    keys,
    values,
    table,
    block_stride,
    start,
    end,
    first_alive,
    position,  # [M]
    scale,
    cap,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    """Tokens [start, start + TILE) of one row, which lie in `blocks`; returns the state and the next tile's blocks.

    MASKED: some tokens may be hidden. `first_alive`, `end`: bounds of what may be read.
    """
    place = start + tl.arange(0, TILE)
    offsets = slot_offsets(blocks, start, block_stride, TILE, PAGE, DIM)
    following = blocks_of(table, start + TILE, end - 1, TILE, PAGE)
    alive = (place < end) & (place >= first_alive)
    k = load_tile(keys, offsets, alive, MASKED, DIM, DIM_PAD).to(query.dtype)
    scores = tl.dot(query, tl.trans(k), input_precision="ieee")  # [M, TILE]; of float32 only, others have one way
    factor = scale * LOG2_E
    if SOFT_CAP:
        scores = soft_capped(scores * scale, cap)
        factor = LOG2_E
    if MASKED:
        visible = alive[None, :]
        if CAUSAL:
            visible = visible & (place[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (place[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1) * factor)
    level = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
    weights = tl.exp2(scores * factor - level[:, None])
    decay = tl.exp2(peak - level)
    total = total * decay + tl.sum(weights, 1)
    v = load_tile(values, offsets, alive, MASKED, DIM, DIM_PAD).to(query.dtype)
    mixed = tl.dot(weights.to(query.dtype), v, mixed * decay[:, None], input_precision="ieee")
    return higher, total, mixed, following
