"""Attention of any batch: a program is a block of one row's tokens times one KV head.

The block packs tokens x query heads of the group, so that the products have many rows and keys and values are read once
for all of them. Tiles that every token sees are not masked; tiles nobody sees are not read. The grid is the worst case
for (tokens, rows), found again in `query_starts` on the device, so that it is the same at every replay.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import LOG2_E, attend_tile, blocks_of, is_decode


@triton.jit
def row_of_block(query_starts, base, block, num_rows, BLOCK_TOKENS: tl.constexpr):
    """The row whose tokens block `block` holds: row r's blocks begin at (start of r - base) // BLOCK_TOKENS + r."""
    low = 0
    high = num_rows
    while low < high:  # the last r whose first block is not above `block` is low - 1
        middle = (low + high) // 2
        if (tl.load(query_starts + middle) - base) // BLOCK_TOKENS + middle <= block:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(
    do_not_specialize=["block_table", "rows", "query_starts", "seq_lens", "first_row", "num_rows", "table_stride"]
)
def prefill_kernel(
    output,
    query,
    cache,
    block_table,
    rows,
    query_starts,
    seq_lens,
    sinks,
    first_row,
    num_rows,
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
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SINKS: tl.constexpr,
    APART: tl.constexpr,
):
    """Rows [first_row, first_row + num_rows). Grid (kv heads, tokens // (BLOCK_ROWS // GROUP) + num_rows).

    APART: but for those that `decode_kernel` serves in a launch that is told the same.

    Blocks are taken from the end, where those of a long prompt have the longest contexts: the tail is short ones.
    """
    BLOCK_TOKENS: tl.constexpr = BLOCK_ROWS // GROUP
    kv_head = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    base = tl.load(query_starts + first_row)
    row = row_of_block(query_starts + first_row, base, block, num_rows, BLOCK_TOKENS)
    first = (block - row) * BLOCK_TOKENS
    row += first_row
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    first -= (row_start - base) // BLOCK_TOKENS * BLOCK_TOKENS  # of the row's tokens
    if first >= query_len:
        return
    if APART:  # noqa: SIM102  without it there is nothing to load, and this line is not compiled
        if is_decode(query_starts, row):
            return
    length = tl.load(seq_lens + row)
    table = block_table + tl.load(rows + row).to(tl.int64) * table_stride

    line = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, DIM_PAD)
    token = first + line // GROUP
    head = kv_head * GROUP + line % GROUP
    is_real = (token < query_len) & (line < BLOCK_TOKENS * GROUP)
    at = (row_start + token).to(tl.int64)
    wanted = is_real[:, None] & (dims[None, :] < DIM)
    q = tl.load(
        query + (at * query_token_stride + head * query_head_stride)[:, None] + dims[None, :], mask=wanted, other=0.0
    )
    position = length - query_len + token
    lowest = length - query_len + first
    highest = tl.minimum(lowest + BLOCK_TOKENS, length) - 1

    peak = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    if SINKS:
        peak = tl.load(sinks + head, mask=is_real, other=0.0).to(tl.float32) * LOG2_E
        total = total + 1.0
    mixed = tl.zeros([BLOCK_ROWS, DIM_PAD], tl.float32)

    keys = cache + kv_head * (PAGE * DIM)
    values = keys + NUM_KV_HEADS * PAGE * DIM
    # tokens  |  nobody sees  | some see     | all see           | some see      | nobody sees
    #         0             begin         all_from            all_to            end
    end = length
    all_to = length // TILE * TILE
    if CAUSAL:
        end = highest + 1
        all_to = (lowest + 1) // TILE * TILE
    begin = 0
    all_from = 0
    first_alive = 0
    if WINDOW > 0:
        first_alive = tl.maximum(lowest - WINDOW + 1, 0)
        begin = first_alive // TILE * TILE
        all_from = (tl.maximum(highest - WINDOW + 1, 0) + TILE - 1) // TILE * TILE
        blocks = blocks_of(table, begin, end - 1, TILE, PAGE)
        for start in range(begin, tl.minimum(all_from, end), TILE):
            peak, total, mixed, blocks = attend_tile(
                q, peak, total, mixed, blocks, keys, values, table, block_stride, start, end, first_alive, position,
                scale, cap, True, CAUSAL, WINDOW, SOFT_CAP, TILE, PAGE, DIM, DIM_PAD,
            )  # fmt: skip
    else:
        blocks = blocks_of(table, 0, end - 1, TILE, PAGE)
    for start in range(all_from, all_to, TILE):
        peak, total, mixed, blocks = attend_tile(
            q, peak, total, mixed, blocks, keys, values, table, block_stride, start, end, first_alive, position,
            scale, cap, False, CAUSAL, WINDOW, SOFT_CAP, TILE, PAGE, DIM, DIM_PAD,
        )  # fmt: skip
    for start in range(tl.maximum(all_from, all_to), end, TILE):
        peak, total, mixed, blocks = attend_tile(
            q, peak, total, mixed, blocks, keys, values, table, block_stride, start, end, first_alive, position,
            scale, cap, True, CAUSAL, WINDOW, SOFT_CAP, TILE, PAGE, DIM, DIM_PAD,
        )  # fmt: skip

    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        output + (at * output_token_stride + head * DIM)[:, None] + dims[None, :],
        mixed.to(output.dtype.element_ty),
        mask=wanted,
    )
