"""A gated MLP's first product and its activation at once, for devices with warp-group products and bulk tensor copies.

As many programs as the device has units walk over tiles of 128 rows x 128 features of the output, each in three
partitions of warps: one copies blocks of rows, gate weights and up weights, two multiply half of the tile's rows each,
by gate and up beside each other, so that every output's two sums lie in one thread.

    copy       | x gate up | x gate up | ...                        STAGES blocks of BLOCK columns ahead of the products
    multiply   tile 0 ............... | tile 1 .................    sums stay in registers
    multiply                          | silu, store of tile 0       in the first products of tile 1, as packed pairs

gate and up are rounded to bfloat16 when a tile is complete, which is where the product in two launches rounds them; of
e4m3, after both scales, one a row and one a channel, which the multiplying partitions read when they begin a tile.
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

ROWS = gl.constexpr(64)  # of one multiplying partition
TILE_ROWS = gl.constexpr(2 * ROWS)
TILE_FEATURES = gl.constexpr(128)
LINE_BYTES = gl.constexpr(128)  # of a row in shared memory: one block of x or of a weight, one panel of the output
PANEL = gl.constexpr(64)  # features of the output in one panel
STAGES = gl.constexpr(4)  # blocks in flight
STAGE_BYTES = gl.constexpr((TILE_ROWS + 2 * TILE_FEATURES) * LINE_BYTES)
COPY_REGISTERS, PRODUCT_REGISTERS = gl.constexpr(24), gl.constexpr(240)


def lines(t: Tensor, height: int) -> Any:
    """A descriptor of t [rows, columns] in boxes of `height` lines of LINE_BYTES.

    It travels with the launch, by value: a captured graph keeps it.
    """
    item = t.element_size()
    layout = gl.NVMMASharedLayout(swizzle_byte_width=LINE_BYTES.value, element_bitwidth=8 * item, rank=2)
    return TensorDescriptor(t, list(t.shape), list(t.stride()), [height, LINE_BYTES.value // item], layout)


def descriptors(out: Tensor, x: Tensor, weight: Tensor) -> tuple[Any, Any, Any]:
    """Of out [rows, features], x [rows, k] and weight [2 * features, k], in the boxes that the kernel copies."""
    return lines(out, ROWS.value), lines(x, TILE_ROWS.value), lines(weight, TILE_FEATURES.value)


@gluon.jit
def place_of(tile, tiles_down, tiles_across, GROUP: gl.constexpr):
    """(row, feature) of a tile: GROUP rows of tiles at a time, down each of their columns."""
    group = GROUP * tiles_across
    first = tile // group * GROUP
    height = gl.minimum(tiles_down - first, GROUP)
    inner = tile % group
    return (first + inner % height) * TILE_ROWS, inner // height * TILE_FEATURES


@gluon.jit
def halves(x):
    """The left and the right columns of x [R, C]: two of [R, C // 2]; registers stay where they are."""
    R: gl.constexpr = x.shape[0]
    C: gl.constexpr = x.shape[1]
    return gl.split(gl.permute(gl.reshape(x, [R, 2, C // 2]), (0, 2, 1)))


@gluon.jit
def pack(x):
    """Neighbouring columns of x [R, C], float32, as bfloat16 in one word: [R, C // 2], int32.

    Not pure, so that the compiler packs here and does not carry the sums through the next tile.
    """
    R: gl.constexpr = x.shape[0]
    C: gl.constexpr = x.shape[1]
    even, odd = gl.split(gl.reshape(x, [R, C // 2, 2]))
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def low(x):
    return (x << 16).to(gl.float32, bitcast=True)


@gluon.jit
def high(x):
    return (x & -65536).to(gl.float32, bitcast=True)


@gluon.jit
def silu(x):
    power = 1.0 + gl.exp2(x * -1.4426950408889634)
    return x * gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [power], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def scales_at(scales, start, end, COUNT: gl.constexpr):
    """scales[start : start + COUNT], zeros from `end` on."""
    places = start + gl.arange(0, COUNT, gl.BlockedLayout([1], [32], [4], [0]))
    return gl.load(scales + places, mask=places < end, other=0.0)


@gluon.jit
def scaled(x, row_scale, channel_scale):
    """x [R, C] times row_scale [R] and channel_scale [C]."""
    L: gl.constexpr = x.type.layout
    rows = gl.convert_layout(row_scale, gl.SliceLayout(1, L))
    channels = gl.convert_layout(channel_scale, gl.SliceLayout(0, L))
    return x * gl.expand_dims(rows, 1) * gl.expand_dims(channels, 0)


@gluon.jit
def put_panel(out, gate, up, room, row, feature):
    """silu(gate) * up of packed pairs [ROWS, PANEL // 2] to `out` at (row, feature), by way of `room`.

    Rounded where the reference rounds. The store before the last must be complete: it used this room.
    """
    even = silu(low(gate)).to(out.dtype).to(gl.float32) * low(up)
    odd = silu(high(gate)).to(out.dtype).to(gl.float32) * high(up)
    found = gl.reshape(gl.join(even, odd), [ROWS, PANEL]).to(out.dtype)
    tma.store_wait(1)
    room.store(found)
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [row, feature], room)


@gluon.jit
def copy(x, weight, xs, weights, full, free, features, steps, tiles_down, tiles_across, GROUP: gl.constexpr):
    """The partition that copies. What is outside a tensor comes as zeros; gate lines past the last are up's, unused."""
    BLOCK: gl.constexpr = xs.shape[2]
    step = 0
    for tile in range(gl.program_id(0), tiles_down * tiles_across, gl.num_programs(0)):
        row, feature = place_of(tile, tiles_down, tiles_across, GROUP)
        for k in range(steps):
            stage = step % STAGES
            mbarrier.wait(free.index(stage), (step // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, STAGE_BYTES)
            tma.async_copy_global_to_shared(x, [row, k * BLOCK], bar, xs.index(stage))
            room = weights.index(stage)
            gate = room.slice(0, TILE_FEATURES)
            up = room.slice(TILE_FEATURES, TILE_FEATURES)
            tma.async_copy_global_to_shared(weight, [feature, k * BLOCK], bar, gate)
            tma.async_copy_global_to_shared(weight, [features + feature, k * BLOCK], bar, up)
            step += 1


@gluon.jit
def begin(xs, weights, full, step, sums, WHO: gl.constexpr, ADD: gl.constexpr):
    """sums + the block `step`, begun and not complete. ADD: False where the block is a tile's first."""
    stage = step % STAGES
    mbarrier.wait(full.index(stage), step // STAGES & 1)
    left = xs.index(stage).slice(WHO * ROWS, ROWS)
    right = weights.index(stage).permute((1, 0))
    return warpgroup_mma(left, right, sums, use_acc=ADD, is_async=True)


@gluon.jit
def multiply(out, x_scale, scale, walk, WHO: gl.constexpr, GROUP: gl.constexpr):
    """One multiplying partition. The panels of a tile are stored after the first products of the next have begun."""
    xs, weights, rooms, full, free, rows, features, steps, tiles_down, tiles_across = walk
    WIDTH: gl.constexpr = 2 * TILE_FEATURES
    DEEP: gl.constexpr = 256 // xs.dtype.primitive_bitwidth  # columns of one product: 32 bytes
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, DEEP])
    sums = gl.zeros([ROWS, WIDTH], gl.float32, SUMS)
    gate, up = halves(sums)
    gate = pack(gate)
    up = pack(up)
    row = rows  # outside: nothing is stored before the first tile
    feature = 0
    step = 0
    for tile in range(gl.program_id(0), tiles_down * tiles_across, gl.num_programs(0)):
        new_row, new_feature = place_of(tile, tiles_down, tiles_across, GROUP)
        new_row += WHO * ROWS
        if x_scale is not None:
            row_scale = scales_at(x_scale, new_row, rows, ROWS)
            gate_scale = scales_at(scale, new_feature, features, TILE_FEATURES)
            up_scale = scales_at(scale + features, new_feature, features, TILE_FEATURES)
        gate0, gate1 = halves(gate)
        up0, up1 = halves(up)
        sums = begin(xs, weights, full, step, sums, WHO, False)
        put_panel(out, gate0, up0, rooms.index(2 * WHO), row, feature)
        step += 1
        sums = begin(xs, weights, full, step, sums, WHO, True)
        put_panel(out, gate1, up1, rooms.index(2 * WHO + 1), row, feature + PANEL)
        mbarrier.wait(full.index((step + 1) % STAGES), (step + 1) // STAGES & 1)  # keeps the stores before what follows
        sums = warpgroup_mma_wait(1, deps=[sums])
        mbarrier.arrive(free.index((step - 1) % STAGES), count=1)
        step += 1
        for _ in range(2, steps):
            sums = begin(xs, weights, full, step, sums, WHO, True)
            sums = warpgroup_mma_wait(1, deps=[sums])
            mbarrier.arrive(free.index((step - 1) % STAGES), count=1)
            step += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index((step - 1) % STAGES), count=1)
        gate32, up32 = halves(sums)
        if x_scale is not None:
            gate32 = scaled(gate32, row_scale, gate_scale)
            up32 = scaled(up32, row_scale, up_scale)
        gate = pack(gate32)
        up = pack(up32)
        row = new_row
        feature = new_feature
    gate0, gate1 = halves(gate)
    up0, up1 = halves(up)
    put_panel(out, gate0, up0, rooms.index(2 * WHO), row, feature)
    put_panel(out, gate1, up1, rooms.index(2 * WHO + 1), row, feature + PANEL)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows", "features", "steps"])  # one compilation for every model
def warpgroup_gated_kernel(out, x, weight, x_scale, scale, rows, features, steps, GROUP: gl.constexpr):
    """out [rows, features] = silu(x weight[:features]^T) * (x weight[features:]^T), bfloat16, by their `descriptors`.

    x and weight: bfloat16, without scales (None); or e4m3, with x_scale [rows] and scale [2 * features], float32.
    steps: lines of LINE_BYTES along x, three or more (what is outside counts as zeros). GROUP: rows of tiles that are
    walked together, column by column, so that they find weights in the cache.
    """
    tiles_down = (rows + TILE_ROWS - 1) // TILE_ROWS
    tiles_across = (features + TILE_FEATURES - 1) // TILE_FEATURES
    BLOCK: gl.constexpr = LINE_BYTES * 8 // x.dtype.primitive_bitwidth
    xs = gl.allocate_shared_memory(x.dtype, [STAGES, TILE_ROWS, BLOCK], x.layout)
    weights = gl.allocate_shared_memory(weight.dtype, [STAGES, 2 * TILE_FEATURES, BLOCK], weight.layout)
    rooms = gl.allocate_shared_memory(out.dtype, [4, ROWS, PANEL], out.layout)  # two of each multiplying partition
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=2)  # both multiplying partitions
    fence_async_shared()
    walk = (xs, weights, rooms, full, free, rows, features, steps, tiles_down, tiles_across)
    gl.warp_specialize(
        [
            (multiply, (out, x_scale, scale, walk, 0, GROUP)),
            (multiply, (out, x_scale, scale, walk, 1, GROUP)),
            (copy, (x, weight, xs, weights, full, free, features, steps, tiles_down, tiles_across, GROUP)),
        ],
        [4, 1],
        [PRODUCT_REGISTERS, COPY_REGISTERS],
    )
