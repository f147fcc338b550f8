"""Attention of many tokens a row for devices with warp-group products (wgmma) and bulk tensor copies.

A program is 128 lines, tokens x query heads of one KV head's group, in three partitions of warps: one fetches blocks of
keys and values, two attend with half of the lines each.

    fetch     K9 V9 K8 V8 K7 V7 ...                 two tiles of each in shared memory, from the last to the first
    attend    scores(7) | weights(8) x V8    while these run on the matrix units, softmax(7)
    attend    the other 64 lines, not in step: one group's softmax hides in the other's products

The order of work within a partition is that of FlashAttention-3 (Shah et al., 2024). Plain attention only: what has a
window, a soft cap or sinks, other head sizes, block sizes or types of cache takes `tenon_triton.attention.prefill`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LINES = gl.constexpr(64)  # of one attending partition: rows of a product
HALF = gl.constexpr(64)  # of a head, the width of one swizzled panel of shared memory
PAGE = gl.constexpr(64)  # tokens of a block
TILE = gl.constexpr(2 * PAGE)  # tokens at a time: two blocks
STAGES = gl.constexpr(2)  # tiles of keys, and of values, in flight
BLOCK_LINES = 2 * LINES.value  # of a program
TILE_BYTES = gl.constexpr(TILE * 2 * HALF * 2)


def lines_of(cache: Tensor) -> Any:
    """A descriptor of the cache's lines [blocks * 2 * kv heads * PAGE, 2 * HALF], fetched in boxes [PAGE, HALF]."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    lines = cache.view(-1, cache.shape[-1])
    return TensorDescriptor(lines, list(lines.shape), list(lines.stride()), [PAGE.value, HALF.value], layout)


@gluon.jit
def row_of_block(query_starts, base, block, num_rows, BLOCK_TOKENS: gl.constexpr):
    """As `tenon_triton.attention.prefill.row_of_block`: the row whose tokens block `block` holds."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if (gl.load(query_starts + middle) - base) // BLOCK_TOKENS + middle <= block:
            low = middle + 1
        else:
            high = middle
    return low - 1


@gluon.jit
def fetch_tile(pages, first, second, rooms, stage, full):
    """Lines `first` and `second` of the cache and PAGE - 1 after each, both halves, into a tile of `rooms`."""
    mbarrier.expect(full, TILE_BYTES)
    for half in gl.static_range(2):
        room = rooms.index(stage * 2 + half)
        tma.async_copy_global_to_shared(pages, [first, half * HALF], full, room.slice(0, PAGE))
        tma.async_copy_global_to_shared(pages, [second, half * HALF], full, room.slice(PAGE, PAGE))


@gluon.jit
def fetch(
    pages, table, keys, values, key_full, key_free, value_full, value_free, kv_head, end, num_tiles,
    NUM_KV_HEADS: gl.constexpr,
):  # fmt: skip
    """The partition that copies tiles, the last one first. The last tile's second block may be the first again."""
    last = (end - 1) // PAGE
    for i in range(num_tiles):
        tile = num_tiles - 1 - i
        stage = i % STAGES
        phase = (i // STAGES & 1) ^ 1
        first = (gl.load(table + 2 * tile) * (2 * NUM_KV_HEADS) + kv_head) * PAGE
        second = (gl.load(table + gl.minimum(2 * tile + 1, last)) * (2 * NUM_KV_HEADS) + kv_head) * PAGE
        mbarrier.wait(key_free.index(stage), phase)
        fetch_tile(pages, first, second, keys, stage, key_full.index(stage))
        mbarrier.wait(value_free.index(stage), phase)
        values_at: gl.constexpr = NUM_KV_HEADS * PAGE
        fetch_tile(pages, first + values_at, second + values_at, values, stage, value_full.index(stage))


@gluon.jit
def scores_of(queries, WHO: gl.constexpr, keys, stage, SCORES: gl.constexpr):
    """[LINES, TILE], begun and not complete."""
    zero = gl.zeros([LINES, TILE], gl.float32, SCORES)
    first_keys = keys.index(stage * 2).permute((1, 0))
    second_keys = keys.index(stage * 2 + 1).permute((1, 0))
    scores = warpgroup_mma(queries.index(WHO * 2), first_keys, zero, use_acc=False, is_async=True)
    return warpgroup_mma(queries.index(WHO * 2 + 1), second_keys, scores, is_async=True)


@gluon.jit
def fold(
    scores, peak, total, factor, MIXED: gl.constexpr, WEIGHTS: gl.constexpr, DTYPE: gl.constexpr, MASKED: gl.constexpr
):
    """The running softmax with one more tile: (peak, total, weights as a product's left side, decay of `mixed`)."""
    higher = gl.maximum(peak, gl.max(scores, 1) * factor)
    if MASKED:
        level = gl.where(higher == float("-inf"), 0.0, higher)  # nothing visible yet: no -inf minus -inf
    else:
        level = higher
    weights = gl.exp2(scores * factor - level[:, None])
    decay = gl.exp2(peak - level)
    total = total * decay + gl.sum(weights, 1)
    return (
        higher,
        total,
        gl.convert_layout(weights.to(DTYPE), WEIGHTS),
        gl.convert_layout(decay, gl.SliceLayout(1, MIXED))[:, None],
    )


@gluon.jit
def attend(
    query, output, queries, keys, values, rooms, key_full, key_free, value_full, value_free, row_start, query_len,
    length, first, end, num_tiles, num_whole, kv_head, query_token_stride, query_head_stride, output_token_stride,
    factor, WHO: gl.constexpr, GROUP: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """One attending partition: lines [WHO * LINES, (WHO + 1) * LINES) of the program's."""
    DTYPE: gl.constexpr = query.dtype.element_ty
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    MIXED: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HALF, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=MIXED, k_width=2)
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])

    line = WHO * LINES + gl.arange(0, LINES, gl.SliceLayout(1, LOADED))
    dims = gl.arange(0, HALF, gl.SliceLayout(0, LOADED))
    token = first + line // GROUP
    at = (row_start + token).to(gl.int64) * query_token_stride + (kv_head * GROUP + line % GROUP) * query_head_stride
    for half in gl.static_range(2):
        part = gl.load(query + at[:, None] + half * HALF + dims[None, :], mask=(token < query_len)[:, None], other=0.0)
        queries.index(WHO * 2 + half).store(part)
    fence_async_shared()

    position = length - query_len + first + (WHO * LINES + gl.arange(0, LINES, gl.SliceLayout(1, SCORES))) // GROUP
    place = gl.arange(0, TILE, gl.SliceLayout(0, SCORES))
    held_place = gl.arange(0, TILE, gl.SliceLayout(1, LOADED))
    peak = gl.full([LINES], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([LINES], gl.float32, gl.SliceLayout(1, SCORES))
    mixed0 = gl.zeros([LINES, HALF], gl.float32, MIXED)
    mixed1 = gl.zeros([LINES, HALF], gl.float32, MIXED)

    # tiles of which some lines see a part: the last ones, one or two
    num_masked = num_tiles - num_whole
    for i in range(num_masked):
        start = (num_tiles - 1 - i) * TILE
        stage = i % STAGES
        phase = i // STAGES & 1
        mbarrier.wait(key_full.index(stage), phase)
        scores = warpgroup_mma_wait(0, deps=[scores_of(queries, WHO, keys, stage, SCORES)])
        mbarrier.arrive(key_free.index(stage), count=1)
        seen = (start + place)[None, :]
        visible = seen < end
        if CAUSAL:
            visible = visible & (seen <= position[:, None])
        scores = gl.where(visible, scores, float("-inf"))
        peak, total, weights, decay = fold(scores, peak, total, factor, MIXED, WEIGHTS, DTYPE, True)
        mixed0 = mixed0 * decay
        mixed1 = mixed1 * decay
        mbarrier.wait(value_full.index(stage), phase)
        if start + TILE > length:
            # what nobody has written may be NaN, and 0 * NaN is NaN: a copy of its own with zeros there
            alive = (start + held_place < length)[:, None]
            room = rooms.index(WHO)
            room.store(gl.where(alive, values.index(stage * 2).load(LOADED), 0.0))
            fence_async_shared()
            mixed0 = warpgroup_mma(weights, room, mixed0)
            room.store(gl.where(alive, values.index(stage * 2 + 1).load(LOADED), 0.0))
            fence_async_shared()
            mixed1 = warpgroup_mma(weights, room, mixed1)
        else:
            mixed0 = warpgroup_mma(weights, values.index(stage * 2), mixed0)
            mixed1 = warpgroup_mma(weights, values.index(stage * 2 + 1), mixed1)
        mbarrier.arrive(value_free.index(stage), count=1)

    if num_whole > 0:
        stage = num_masked % STAGES
        mbarrier.wait(key_full.index(stage), num_masked // STAGES & 1)
        scores = warpgroup_mma_wait(0, deps=[scores_of(queries, WHO, keys, stage, SCORES)])
        mbarrier.arrive(key_free.index(stage), count=1)
        peak, total, weights, decay = fold(scores, peak, total, factor, MIXED, WEIGHTS, DTYPE, False)
        mixed0 = mixed0 * decay
        mixed1 = mixed1 * decay
        for i in range(num_masked + 1, num_tiles):
            stage = i % STAGES
            before = (i - 1) % STAGES
            mbarrier.wait(key_full.index(stage), i // STAGES & 1)
            begun = scores_of(queries, WHO, keys, stage, SCORES)
            mbarrier.wait(value_full.index(before), (i - 1) // STAGES & 1)
            running0 = warpgroup_mma(weights, values.index(before * 2), mixed0, is_async=True)
            running1 = warpgroup_mma(weights, values.index(before * 2 + 1), mixed1, is_async=True)
            scores = warpgroup_mma_wait(2, deps=[begun])
            mbarrier.arrive(key_free.index(stage), count=1)
            peak, total, weights, decay = fold(scores, peak, total, factor, MIXED, WEIGHTS, DTYPE, False)
            # Waiting for the next keys here ends a basic block: without it the compiler moves the wait for the
            # products before the softmax that is to hide them.
            mbarrier.wait(key_full.index((i + 1) % STAGES), (i + 1) // STAGES & 1, pred=i + 1 < num_tiles)
            mixed0, mixed1, total = warpgroup_mma_wait(0, deps=[running0, running1, total])
            mbarrier.arrive(value_free.index(before), count=1)
            mixed0 = mixed0 * decay
            mixed1 = mixed1 * decay
        last = (num_tiles - 1) % STAGES
        mbarrier.wait(value_full.index(last), (num_tiles - 1) // STAGES & 1)
        running0 = warpgroup_mma(weights, values.index(last * 2), mixed0, is_async=True)
        running1 = warpgroup_mma(weights, values.index(last * 2 + 1), mixed1, is_async=True)
        mixed0, mixed1 = warpgroup_mma_wait(0, deps=[running0, running1])

    whole = gl.convert_layout(total, gl.SliceLayout(1, MIXED))
    share = (1.0 / gl.where(whole == 0.0, 1.0, whole))[:, None]
    out_line = WHO * LINES + gl.arange(0, LINES, gl.SliceLayout(1, MIXED))
    out_token = first + out_line // GROUP
    to = (row_start + out_token).to(gl.int64) * output_token_stride
    to += (kv_head * GROUP + out_line % GROUP) * (2 * HALF)
    out_dims = gl.arange(0, HALF, gl.SliceLayout(0, MIXED))[None, :]
    is_real = (out_token < query_len)[:, None]
    gl.store(output + to[:, None] + out_dims, (mixed0 * share).to(DTYPE), mask=is_real)
    gl.store(output + to[:, None] + HALF + out_dims, (mixed1 * share).to(DTYPE), mask=is_real)


@gluon.jit(do_not_specialize=["first_row", "num_rows", "table_stride"])
def warpgroup_prefill_kernel(
    output, query, pages, block_table, rows, query_starts, seq_lens, first_row, num_rows, table_stride,
    query_token_stride, query_head_stride, output_token_stride, factor, NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, APART: gl.constexpr,
):  # fmt: skip
    """Rows [first_row, first_row + num_rows). Grid (kv heads, tokens // (2 * LINES // GROUP) + num_rows).

    pages: descriptor of the cache as lines [blocks * 2 * kv heads * PAGE, 2 * HALF], boxes [PAGE, HALF]. factor: of
    scores, to log2 units. Blocks are taken from the end, where those of a long prompt have the longest contexts. APART:
    decodes are left out, as in `tenon_triton.attention.prefill`.
    """
    BLOCK_TOKENS: gl.constexpr = 2 * LINES // GROUP
    kv_head = gl.program_id(0)
    block = gl.num_programs(1) - 1 - gl.program_id(1)
    base = gl.load(query_starts + first_row)
    row = row_of_block(query_starts + first_row, base, block, num_rows, BLOCK_TOKENS)
    first = (block - row) * BLOCK_TOKENS
    row += first_row
    row_start = gl.load(query_starts + row)
    query_len = gl.load(query_starts + row + 1) - row_start
    first -= (row_start - base) // BLOCK_TOKENS * BLOCK_TOKENS  # of the row's tokens
    is_mine = first < query_len
    if APART:
        is_mine = is_mine & ((row_start != row) | (query_len != 1))
    if is_mine:
        length = gl.load(seq_lens + row)
        table = block_table + gl.load(rows + row).to(gl.int64) * table_stride
        end = length
        num_whole = length // TILE
        if CAUSAL:
            lowest = length - query_len + first
            end = gl.minimum(lowest + BLOCK_TOKENS, length)
            num_whole = (lowest + 1) // TILE
        num_tiles = (end + TILE - 1) // TILE

        DTYPE: gl.constexpr = query.dtype.element_ty
        keys = gl.allocate_shared_memory(DTYPE, [STAGES * 2, TILE, HALF], pages.layout)
        values = gl.allocate_shared_memory(DTYPE, [STAGES * 2, TILE, HALF], pages.layout)
        queries = gl.allocate_shared_memory(DTYPE, [4, LINES, HALF], pages.layout)
        rooms = gl.allocate_shared_memory(DTYPE, [2, TILE, HALF], pages.layout)
        key_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        key_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        value_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        value_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(STAGES):
            mbarrier.init(key_full.index(i), count=1)
            mbarrier.init(value_full.index(i), count=1)
            mbarrier.init(key_free.index(i), count=2)  # both attending partitions
            mbarrier.init(value_free.index(i), count=2)
        fence_async_shared()
        gl.warp_specialize(
            [
                (attend, (
                    query, output, queries, keys, values, rooms, key_full, key_free, value_full, value_free,
                    row_start, query_len, length, first, end, num_tiles, num_whole, kv_head, query_token_stride,
                    query_head_stride, output_token_stride, factor, 0, GROUP, CAUSAL,
                )),
                (attend, (
                    query, output, queries, keys, values, rooms, key_full, key_free, value_full, value_free,
                    row_start, query_len, length, first, end, num_tiles, num_whole, kv_head, query_token_stride,
                    query_head_stride, output_token_stride, factor, 1, GROUP, CAUSAL,
                )),
                (fetch, (
                    pages, table, keys, values, key_full, key_free, value_full, value_free, kv_head, end, num_tiles,
                    NUM_KV_HEADS,
                )),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
