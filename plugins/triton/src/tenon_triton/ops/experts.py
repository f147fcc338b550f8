"""Kernels of a mixture of experts: routing, sorting, grouped products, the weighted sum.

An *assignment* is one of a token's top_k experts: number token * top_k + place. Sorted, assignments of one expert fill
whole groups of M, so that every tile has one expert; grids are the worst case, programs past the last tile leave.

    order   int32 [tiles * M]  assignments by expert, num_assignments where a group is not full
    owner   int32 [tiles]      each tile's expert, -1: no tile
"""

from __future__ import annotations

import triton
import triton.language as tl

from .mlp import gated


@triton.jit
def route(
    scores,
    experts,
    shares,
    num_experts,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    PLACES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Softmax over all experts in float32, then the best TOP_K by repeated choice, the lowest id of equal ones."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, WIDTH)
    inside = expert < num_experts
    x = tl.load(scores + token * num_experts + expert, mask=inside, other=float("-inf")).to(tl.float32)
    weight = tl.exp(x - tl.max(x, axis=0))
    weight = tl.where(inside, weight / tl.sum(weight, axis=0), -1.0)
    total = 0.0
    place = tl.arange(0, PLACES)
    kept = tl.zeros([PLACES], tl.float32)
    which = tl.zeros([PLACES], tl.int32)
    for index in tl.static_range(TOP_K):
        best = tl.max(weight, axis=0)
        chosen = tl.min(tl.where(weight == best, expert, WIDTH - 1), axis=0)
        kept = tl.where(place == index, best, kept)
        which = tl.where(place == index, chosen, which)
        total += best
        weight = tl.where(expert == chosen, -1.0, weight)
    if RENORMALIZE:
        kept = kept / total
    tl.store(shares + token * TOP_K + place, kept, mask=place < TOP_K)
    tl.store(experts + token * TOP_K + place, which, mask=place < TOP_K)


@triton.jit(do_not_specialize=["num_assignments", "num_tiles"])
def sort(
    experts,
    order,
    owner,
    num_assignments,
    num_tiles,
    num_experts,
    M: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program an expert: where its group begins, its assignments in rising order, and its tiles. The last program,
    num_experts, marks the tiles that nobody owns.
    """
    mine = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    counts = tl.zeros([WIDTH], tl.int32)
    for start in range(0, num_assignments, BLOCK):
        inside = start + lane < num_assignments
        held = tl.load(experts + start + lane, mask=inside, other=0)
        counts += tl.histogram(held, WIDTH, mask=inside)
    tiles = (counts + M - 1) // M
    ids = tl.arange(0, WIDTH)
    first = tl.sum(tl.where(ids < mine, tiles, 0), axis=0)
    own = tl.sum(tl.where(ids == mine, tiles, 0), axis=0)
    if mine == num_experts:
        for start in range(first, num_tiles, BLOCK):
            tl.store(owner + start + lane, -1, mask=start + lane < num_tiles)
    else:
        for start in range(0, own, BLOCK):
            tl.store(owner + first + start + lane, mine, mask=start + lane < own)
        seen = 0
        for start in range(0, num_assignments, BLOCK):
            inside = start + lane < num_assignments
            match = inside & (tl.load(experts + start + lane, mask=inside, other=-1) == mine)
            rank = seen + tl.cumsum(match.to(tl.int32), axis=0) - 1
            tl.store(order + first * M + rank, start + lane, mask=match)
            seen += tl.sum(match.to(tl.int32), axis=0)
        pad = tl.arange(0, M)
        empty = seen + pad < own * M
        tl.store(order + first * M + seen + pad, num_assignments + tl.zeros_like(pad), mask=empty)


@triton.jit(do_not_specialize=["num_assignments"])
def grouped(
    x,
    weight,
    y,
    order,
    owner,
    shares,
    num_assignments,
    out_features,
    in_features,
    DIVIDE: tl.constexpr,
    PAIRED: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    EVEN: tl.constexpr,
):
    """y[assignment] = x[assignment // DIVIDE] times its expert's weight [out, in]; paired: gate over up, activated."""
    tile, column_tile = tl.program_id(1), tl.program_id(0)
    expert = tl.load(owner + tile)
    if expert >= 0:
        assignment = tl.load(order + tile * M + tl.arange(0, M))
        known = assignment < num_assignments
        column = column_tile * N + tl.arange(0, N)
        there = column < out_features
        depth = tl.arange(0, K)
        x_row = tl.where(known, assignment // DIVIDE, 0).to(tl.int64) * in_features
        rows = tl.where(there, column, 0).to(tl.int64) * in_features
        size = tl.cast(out_features, tl.int64) * in_features
        base = weight + expert.to(tl.int64) * size * (2 if PAIRED else 1)
        sums = tl.zeros([M, N], tl.float32)
        ups = tl.zeros([M, N], tl.float32)
        for start in range(0, in_features, K):
            place = start + depth
            if EVEN:
                taken = tl.load(x + x_row[:, None] + place[None, :])
                held = tl.load(base + rows[:, None] + place[None, :])
            else:
                inside = (place < in_features)[None, :]
                taken = tl.load(x + x_row[:, None] + place[None, :], mask=inside, other=0.0)
                held = tl.load(base + rows[:, None] + place[None, :], mask=inside, other=0.0)
            sums = tl.dot(taken, tl.trans(held), sums, input_precision=PRECISION)
            if PAIRED:
                if EVEN:
                    second = tl.load(base + size + rows[:, None] + place[None, :])
                else:
                    inside = (place < in_features)[None, :]
                    second = tl.load(base + size + rows[:, None] + place[None, :], mask=inside, other=0.0)
                ups = tl.dot(taken, tl.trans(second), ups, input_precision=PRECISION)
        dtype = x.dtype.element_ty
        if PAIRED:
            sums = gated(sums.to(dtype).to(tl.float32), ups.to(dtype).to(tl.float32), dtype, KIND)
        else:
            sums = sums.to(dtype).to(tl.float32)
            sums *= tl.load(shares + assignment, mask=known, other=0.0)[:, None]
        target = assignment.to(tl.int64)[:, None] * out_features + column[None, :]
        tl.store(y + target, sums.to(y.dtype.element_ty), mask=known[:, None] & there[None, :])


@triton.jit
def single(
    x,
    weight,
    y,
    experts,
    shares,
    out_features,
    in_features,
    DIVIDE: tl.constexpr,
    PAIRED: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """`grouped` for very few tokens: a program an assignment and ROWS rows, no sorting and no matrix unit."""
    assignment = tl.program_id(1)
    expert = tl.load(experts + assignment).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < out_features
    rows = tl.where(there, row, 0).to(tl.int64) * in_features
    size = tl.cast(out_features, tl.int64) * in_features
    base = weight + expert * size * (2 if PAIRED else 1)
    source = x + (assignment // DIVIDE).to(tl.int64) * in_features
    column = tl.arange(0, BLOCK)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    ups = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, in_features, BLOCK):
        place = start + column
        inside = (place < in_features)[None, :]
        taken = tl.load(source + place[None, :], mask=inside, other=0.0).to(tl.float32)
        if EVEN:
            held = tl.load(base + rows[:, None] + place[None, :])
        else:
            held = tl.load(base + rows[:, None] + place[None, :], mask=inside, other=0.0)
        sums += held.to(tl.float32) * taken
        if PAIRED:
            second = tl.load(base + size + rows[:, None] + place[None, :], mask=inside, other=0.0)
            ups += second.to(tl.float32) * taken
    dtype = x.dtype.element_ty
    found = tl.sum(sums, axis=1).to(dtype).to(tl.float32)
    if PAIRED:
        found = gated(found, tl.sum(ups, axis=1).to(dtype).to(tl.float32), dtype, KIND)
    else:
        found *= tl.load(shares + assignment)
    tl.store(y + assignment.to(tl.int64) * out_features + row, found.to(y.dtype.element_ty), mask=there)


@triton.jit
def total(parts, y, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """A token's sum over its float32 parts, in the order of its experts."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    sums = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP_K):
        sums += tl.load(parts + (token * TOP_K + place) * hidden + column, mask=inside, other=0.0)
    tl.store(y + token * hidden + column, sums.to(y.dtype.element_ty), mask=inside)
