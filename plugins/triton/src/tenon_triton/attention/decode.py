"""Attention of rows with one token each: a program is a part of one row's context times one KV head.

The grid (kv heads, rows, parts) is the worst case for a lattice key; how many parts a row really has is decided on the
device from its length, the others leave at once, so one captured launch serves every context. A row in one part is
written out directly. Otherwise parts leave (mixed values, log2 of the sum) in float32, and either the last of them to
finish joins them (JOIN) or `join_kernel` does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..ops.early import trigger, wait
from .tile import LOG2_E, attend_tile, blocks_of


@triton.jit
def part_tiles(num_tiles, max_parts, MIN_TILES: tl.constexpr):
    """Tiles of a part: what divides a row evenly, but not so few that a part costs more than it saves."""
    return tl.maximum((num_tiles + max_parts - 1) // max_parts, MIN_TILES)


@triton.jit
def first_seen(length, WINDOW: tl.constexpr):
    """The first position that a row's newest token sees."""
    return tl.maximum(length - WINDOW, 0) if WINDOW > 0 else length * 0


@triton.jit
def join_head(
    output,
    parts_mixed,
    parts_log,
    num_parts,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One head's parts into its output [DIM]: their average, weighted by their sums."""
    dims = tl.arange(0, DIM_PAD)
    every = tl.arange(0, MAX_PARTS)
    peak = tl.max(tl.load(parts_log + every, mask=every < num_parts, other=float("-inf")), 0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = 0.0
    mixed = tl.zeros([DIM_PAD], tl.float32)
    for first in range(0, num_parts, CHUNK):
        part = first + tl.arange(0, CHUNK)
        log = tl.load(parts_log + part, mask=part < num_parts, other=float("-inf"))
        weight = tl.exp2(log - peak)  # [CHUNK]
        held = tl.load(
            parts_mixed + part[:, None] * DIM + dims[None, :],
            mask=(part[:, None] < num_parts) & (dims[None, :] < DIM),
            other=0.0,
        )
        mixed += tl.sum(held * weight[:, None], 0)
        total += tl.sum(weight, 0)
    mixed = mixed / tl.where(total == 0.0, 1.0, total)
    tl.store(output + dims, mixed.to(output.dtype.element_ty), mask=dims < DIM)


@triton.jit(do_not_specialize=["block_table", "rows", "seq_lens", "max_parts", "table_stride"])
def decode_kernel(
    output,
    query,
    cache,
    block_table,
    rows,
    seq_lens,
    sinks,
    parts_mixed,
    parts_log,
    arrivals,
    max_parts,
    table_stride,
    block_stride,
    query_token_stride,
    query_head_stride,
    output_token_stride,
    scale,
    cap,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    JOIN: tl.constexpr,
    TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Row i's token is token i. max_parts: the grid's last axis, at most MAX_PARTS.

    parts_mixed: float32 [rows, heads, max_parts, DIM]; parts_log: float32 [rows, heads, max_parts]; arrivals: int32
    [rows, kv heads], zero between launches.
    """
    trigger(EARLY)
    wait(EARLY)
    kv_head = tl.program_id(0)
    row = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(seq_lens + row)
    first_alive = first_seen(length, WINDOW)
    begin = first_alive // TILE * TILE
    num_tiles = (length - begin + TILE - 1) // TILE
    share = part_tiles(num_tiles, max_parts, MIN_TILES)
    num_parts = (num_tiles + share - 1) // share
    if part >= num_parts:
        return
    table = block_table + tl.load(rows + row).to(tl.int64) * table_stride

    line = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, DIM_PAD)
    head = kv_head * GROUP + line
    wanted = (line[:, None] < GROUP) & (dims[None, :] < DIM)
    q = tl.load(
        query + row.to(tl.int64) * query_token_stride + (head * query_head_stride)[:, None] + dims[None, :],
        mask=wanted,
        other=0.0,
    )
    position = tl.zeros([BLOCK_ROWS], tl.int32) + (length - 1)
    peak = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    if SINKS:  # noqa: SIM102  without sinks there is nothing to load, and this line is not compiled
        if part == 0:
            peak = tl.load(sinks + head, mask=line < GROUP, other=0.0).to(tl.float32) * LOG2_E
            total = total + 1.0
    mixed = tl.zeros([BLOCK_ROWS, DIM_PAD], tl.float32)

    keys = cache + kv_head * (PAGE * DIM)
    values = keys + NUM_KV_HEADS * PAGE * DIM
    start_of_part = begin + part * share * TILE
    end_of_part = tl.minimum(start_of_part + share * TILE, length)
    blocks = blocks_of(table, start_of_part, length - 1, TILE, PAGE)
    whole = start_of_part
    if TAIL:
        whole = end_of_part // TILE * TILE
        for start in range(start_of_part, whole, TILE):
            peak, total, mixed, blocks = attend_tile(
                q, peak, total, mixed, blocks, keys, values, table, block_stride, start, length, first_alive, position,
                scale, cap, False, False, 0, SOFT_CAP, TILE, PAGE, DIM, DIM_PAD, PRECISION,
            )  # fmt: skip
    for start in range(whole, end_of_part, TILE):  # `alive` is all the mask that one token needs
        peak, total, mixed, blocks = attend_tile(
            q, peak, total, mixed, blocks, keys, values, table, block_stride, start, length, first_alive, position,
            scale, cap, True, False, 0, SOFT_CAP, TILE, PAGE, DIM, DIM_PAD, PRECISION,
        )  # fmt: skip

    sums = tl.where(total == 0.0, 1.0, total)
    mixed = mixed / sums[:, None]
    out = output + row.to(tl.int64) * output_token_stride
    if num_parts == 1:
        tl.store(out + (head * DIM)[:, None] + dims[None, :], mixed.to(output.dtype.element_ty), mask=wanted)
        return
    at = (row * NUM_KV_HEADS * GROUP + head) * max_parts + part  # [BLOCK_ROWS]
    tl.store(parts_mixed + (at * DIM)[:, None] + dims[None, :], mixed, mask=wanted)
    tl.store(parts_log + at, peak + tl.log2(sums), mask=line < GROUP)
    if JOIN:
        tl.debug_barrier()  # every warp's part is stored before this program says so
        arrival = arrivals + row * NUM_KV_HEADS + kv_head
        before = tl.atomic_add(arrival, 1, sem="acq_rel")
        if before == num_parts - 1:
            tl.store(arrival, 0)
            for one in range(GROUP):
                mine = kv_head * GROUP + one
                held = (row * NUM_KV_HEADS * GROUP + mine) * max_parts
                join_head(
                    out + mine * DIM, parts_mixed + held * DIM, parts_log + held, num_parts, DIM, DIM_PAD, MAX_PARTS,
                    CHUNK,
                )  # fmt: skip


@triton.jit(do_not_specialize=["seq_lens", "max_parts"])
def join_kernel(
    output,
    seq_lens,
    parts_mixed,
    parts_log,
    max_parts,
    output_token_stride,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (heads, rows): joins what `decode_kernel` left of rows in several parts."""
    trigger(EARLY)
    wait(EARLY)
    head = tl.program_id(0)
    row = tl.program_id(1)
    length = tl.load(seq_lens + row)
    num_tiles = (length - first_seen(length, WINDOW) // TILE * TILE + TILE - 1) // TILE
    share = part_tiles(num_tiles, max_parts, MIN_TILES)
    num_parts = (num_tiles + share - 1) // share
    if num_parts <= 1:
        return
    held = (row * NUM_HEADS + head) * max_parts
    out = output + row.to(tl.int64) * output_token_stride + head * DIM
    join_head(out, parts_mixed + held * DIM, parts_log + held, num_parts, DIM, DIM_PAD, MAX_PARTS, CHUNK)
