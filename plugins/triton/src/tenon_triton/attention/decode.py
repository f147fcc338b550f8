"""Attention of rows with one token each: a program is a part of one row's context times one KV head.

The grid (kv heads, rows, parts) is the worst case for a lattice key; how many parts a row really has is decided on the
device from its length, the others leave at once, so one captured launch serves every context. A row in one part is
written out directly. Otherwise parts leave (mixed values, log2 of the sum) in float32, and either the last of them to
finish joins them (JOIN) or `join_kernel` does.

A captured step with prompts has decodes in front, how many is read on the device (APART): programs of other rows leave.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..early import fetch, trigger, wait
from .strands import attend_strands
from .tile import LOG2_E, attend_tile, blocks_of, is_decode, slot_offsets


@triton.jit
def part_tiles(num_tiles, max_parts, MIN_TILES: tl.constexpr):
    """Tiles of a part: what divides a row evenly, but not so few that a part costs more than it saves."""
    return tl.maximum((num_tiles + max_parts - 1) // max_parts, MIN_TILES)


@triton.jit
def first_seen(length, WINDOW: tl.constexpr):
    """The first position that a row's newest token sees."""
    return tl.maximum(length - WINDOW, 0) if WINDOW > 0 else length * 0


@triton.jit
def join_heads(
    output,
    parts_mixed,
    parts_log,
    num_parts,
    max_parts,
    HEADS: tl.constexpr,
    LINES: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Neighbouring heads' parts into their outputs [HEADS, DIM]: averages, weighted by their sums.

    All heads at once, and a chunk's sums and values in flight together: this is the last thing that a row waits for.
    """
    line = tl.arange(0, LINES)
    dims = tl.arange(0, DIM_PAD)
    peak = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    mixed = tl.zeros([LINES, DIM_PAD], tl.float32)
    for first in range(0, num_parts, CHUNK):
        part = first + tl.arange(0, CHUNK)
        held_by = line[:, None] * max_parts + part[None, :]  # [LINES, CHUNK]
        there = (line[:, None] < HEADS) & (part[None, :] < num_parts)
        log = tl.load(parts_log + held_by, mask=there, other=float("-inf"))
        held = tl.load(
            parts_mixed + (held_by * DIM)[:, :, None] + dims[None, None, :],
            mask=there[:, :, None] & (dims[None, None, :] < DIM),
            other=0.0,
        )
        higher = tl.maximum(peak, tl.max(log, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        decay, weight = tl.exp2(peak - level), tl.exp2(log - level[:, None])
        total = total * decay + tl.sum(weight, 1)
        mixed = mixed * decay[:, None] + tl.sum(held * weight[:, :, None], 1)
        peak = higher
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        output + line[:, None] * DIM + dims[None, :],
        mixed.to(output.dtype.element_ty),
        mask=(line[:, None] < HEADS) & (dims[None, :] < DIM),
    )


@triton.jit(do_not_specialize=["block_table", "rows", "query_starts", "seq_lens", "max_parts", "table_stride"])
def decode_kernel(
    output,
    query,
    cache,
    block_table,
    rows,
    query_starts,
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
    LINES: tl.constexpr,
    CACHE_LINES: tl.constexpr,
    FETCHES: tl.constexpr,
    STRANDS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    JOIN: tl.constexpr,
    TAIL: tl.constexpr,
    APART: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Row i's token is token i. APART: only of rows that are decodes, the others leave.

    max_parts: the grid's last axis, at most MAX_PARTS. parts_mixed: float32 [rows, heads, max_parts, DIM]; parts_log:
    float32 [rows, heads, max_parts]; arrivals: int32 [rows, kv heads], zero between launches. CACHE_LINES: of a key, or
    0: nothing is fetched ahead, else FETCHES tiles are. What a step's inputs say and where the context lies is complete
    before this launch can begin (`ops/rows.py`), so it is read, and fetched, before the newest query and key are.
    """
    trigger(EARLY)
    kv_head = tl.program_id(0)
    row = tl.program_id(1)
    part = tl.program_id(2)
    if APART:  # noqa: SIM102  without it there is nothing to load, and this line is not compiled
        if not is_decode(query_starts, row):
            if part == 0:
                wait(EARLY)  # as below
            return
    length = tl.load(seq_lens + row)
    first_alive = first_seen(length, WINDOW)
    begin = first_alive // TILE * TILE
    num_tiles = (length - begin + TILE - 1) // TILE
    share = part_tiles(num_tiles, max_parts, MIN_TILES)
    num_parts = (num_tiles + share - 1) // share
    if part >= num_parts:
        if part == 0:
            wait(EARLY)  # a launch is not complete before the one ahead of it is
        return
    table = block_table + tl.load(rows + row).to(tl.int64) * table_stride

    keys = cache + kv_head * (PAGE * DIM)
    values = keys + NUM_KV_HEADS * PAGE * DIM
    start_of_part = begin + part * share * TILE
    end_of_part = tl.minimum(start_of_part + share * TILE, length)
    blocks = blocks_of(table, start_of_part, length - 1, TILE, PAGE)
    if CACHE_LINES > 0:
        offsets = slot_offsets(blocks, start_of_part, block_stride, TILE, PAGE, DIM)
        ahead = tl.minimum(tl.arange(0, CACHE_LINES) * (DIM_PAD // CACHE_LINES), DIM - 1)
        fetch(keys + offsets[:, None] + ahead[None, :], EARLY)
        fetch(values + offsets[:, None] + ahead[None, :], EARLY)
        if FETCHES > 1:
            for start in range(start_of_part + TILE, tl.minimum(start_of_part + FETCHES * TILE, end_of_part), TILE):
                offsets = slot_offsets(
                    blocks_of(table, start, length - 1, TILE, PAGE), start, block_stride, TILE, PAGE, DIM
                )
                fetch(keys + offsets[:, None] + ahead[None, :], EARLY)
                fetch(values + offsets[:, None] + ahead[None, :], EARLY)
    wait(EARLY)

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
    if STRANDS > 1:
        peak, total, mixed = attend_strands(
            q, peak, total, mixed, keys, values, table, block_stride, start_of_part, end_of_part, length, first_alive,
            scale, cap, SOFT_CAP, STRANDS, TILE, PAGE, DIM, DIM_PAD,
        )  # fmt: skip
    else:
        whole = start_of_part
        if TAIL:
            whole = end_of_part // TILE * TILE
            for start in range(start_of_part, whole, TILE):
                peak, total, mixed, blocks = attend_tile(
                    q, peak, total, mixed, blocks, keys, values, table, block_stride, start, length, first_alive,
                    position, scale, cap, False, False, 0, SOFT_CAP, TILE, PAGE, DIM, DIM_PAD,
                )  # fmt: skip
        for start in range(whole, end_of_part, TILE):  # `alive` is all the mask that one token needs
            peak, total, mixed, blocks = attend_tile(
                q, peak, total, mixed, blocks, keys, values, table, block_stride, start, length, first_alive, position,
                scale, cap, True, False, 0, SOFT_CAP, TILE, PAGE, DIM, DIM_PAD,
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
            held = (row * NUM_KV_HEADS + kv_head) * GROUP * max_parts
            join_heads(
                out + kv_head * GROUP * DIM, parts_mixed + held * DIM, parts_log + held, num_parts, max_parts, GROUP,
                LINES, DIM, DIM_PAD, CHUNK,
            )  # fmt: skip


@triton.jit(do_not_specialize=["query_starts", "seq_lens", "max_parts"])
def join_kernel(
    output,
    query_starts,
    seq_lens,
    parts_mixed,
    parts_log,
    max_parts,
    output_token_stride,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    APART: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid (heads, rows): joins what `decode_kernel` left of rows in several parts."""
    trigger(EARLY)
    wait(EARLY)
    head = tl.program_id(0)
    row = tl.program_id(1)
    if APART:  # noqa: SIM102  as in `decode_kernel`
        if not is_decode(query_starts, row):
            return
    length = tl.load(seq_lens + row)
    num_tiles = (length - first_seen(length, WINDOW) // TILE * TILE + TILE - 1) // TILE
    share = part_tiles(num_tiles, max_parts, MIN_TILES)
    num_parts = (num_tiles + share - 1) // share
    if num_parts <= 1:
        return
    held = (row * NUM_HEADS + head) * max_parts
    out = output + row.to(tl.int64) * output_token_stride + head * DIM
    join_heads(out, parts_mixed + held * DIM, parts_log + held, num_parts, max_parts, 1, 1, DIM, DIM_PAD, CHUNK)
