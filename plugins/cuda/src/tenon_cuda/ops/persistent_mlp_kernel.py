"""A gated MLP of few tokens in one launch, for devices with warp-group products and bulk tensor copies.

One program a unit stays for both products. Weights are read as one long stream, whatever the products wait for: while
the programs meet in the middle, the second product's first lines are already on their way.

    copy weights   | gate up | gate up | ... | down | down | ...        STAGES blocks ahead, before x is complete
    copy rows      .. x ........................... | activations | ...
    multiply       ........| x gate^T, x up^T, silu |meet| activations down^T

The weight is the left side of every product: its 64 lines in fast memory times the tokens' lines.

    first product    16 + 16 lines of gate, the same 16 + 16 of up; a program has a run of features, 16 at a time
    second product   32 lines of down from their first column on, the same 32 from their middle on: two sums a line

e4m3: rows come quantized with a scale each. Programs meet twice: once all know the largest activation of every row,
each makes its own e4m3.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .warpgroup_gated_kernel import LINE_BYTES, lines, silu

__all__ = ["lines", "persistent_mlp_kernel"]

PANELS = gl.constexpr(2)  # in one stage
LINES = gl.constexpr(64)  # of a panel of weights
HALF = gl.constexpr(32)  # features of the first product, or of the second, at a time
GRAIN = gl.constexpr(16)  # features of the first product: every program has a multiple of them, and at least one
MOST_PROGRAMS = gl.constexpr(256)  # programs
AT_ONCE = gl.constexpr(128)  # features that are quantized
STAGE_BYTES = gl.constexpr(PANELS * LINES * LINE_BYTES)
X_PARTS = gl.constexpr(4)  # in which x comes
COPY_REGISTERS = gl.constexpr(72)
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its name until Triton 3.6


@gluon.jit
def instruction(TEXT: gl.constexpr):
    """An instruction without operands."""
    gl.inline_asm_elementwise(
        TEXT + " mov.u32 $0, $1;", "=r,r", [gl.program_id(0)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def load_acquire(counter):
    """What a counter says, and with it all that was written before it was raised."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.u64 $0, [$1];", "=l,l", [counter.to(gl.int64)], dtype=gl.int64, is_pure=False, pack=1
    )


@gluon.jit
def grid_barrier(counter):
    """Until all programs are here. counter: int64, a multiple of the number of programs between launches."""
    instruction("fence.proxy.async.global;")  # what was written may be copied in bulk
    barrier()
    programs = gl.num_programs(0)
    before = gl.atomic_add(counter, 1, sem="release", scope="gpu")
    goal = (before // programs + 1) * programs
    while load_acquire(counter) < goal:
        pass
    barrier()


@gluon.jit
def share(features):
    """[first, end) of the features that this program has."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    units = features // GRAIN
    each = units // programs
    more = units % programs
    first = program * each + gl.minimum(program, more)
    return first * GRAIN, (first + each + (program < more).to(gl.int32)) * GRAIN


@gluon.jit
def copy_weights(gate_up, down, ring, full, free, HIDDEN: gl.constexpr, FEATURES: gl.constexpr, STAGES: gl.constexpr):
    """The partition that streams both weights."""
    BLOCK: gl.constexpr = ring.shape[2]
    first, end = share(FEATURES)
    step = 0
    for feature in range(first, end, HALF):
        whole = feature + GRAIN < end
        for k in range(HIDDEN // (PANELS * BLOCK)):
            stage = step % STAGES
            mbarrier.wait(free.index(stage), (step // STAGES & 1) ^ 1)
            bar = full.index(stage)
            if whole:
                mbarrier.expect(bar, STAGE_BYTES)
            else:
                mbarrier.expect(bar, STAGE_BYTES // 2)
            for p in gl.static_range(PANELS):
                room = ring.index(stage * PANELS + p)
                column = (k * PANELS + p) * BLOCK
                tma.async_copy_global_to_shared(gate_up, [feature, column], bar, room.slice(0, GRAIN))
                tma.async_copy_global_to_shared(gate_up, [FEATURES + feature, column], bar, room.slice(HALF, GRAIN))
                if whole:
                    more = feature + GRAIN
                    tma.async_copy_global_to_shared(gate_up, [more, column], bar, room.slice(GRAIN, GRAIN))
                    tma.async_copy_global_to_shared(
                        gate_up, [FEATURES + more, column], bar, room.slice(HALF + GRAIN, GRAIN)
                    )
            step += 1
    for row in range(gl.program_id(0) * HALF, HIDDEN, gl.num_programs(0) * HALF):
        for k in range(FEATURES // (2 * PANELS * BLOCK)):
            stage = step % STAGES
            mbarrier.wait(free.index(stage), (step // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, STAGE_BYTES)
            for p in gl.static_range(PANELS):
                room = ring.index(stage * PANELS + p)
                column = (k * PANELS + p) * BLOCK
                tma.async_copy_global_to_shared(down, [row, column], bar, room.slice(0, HALF))
                tma.async_copy_global_to_shared(down, [row, FEATURES // 2 + column], bar, room.slice(HALF, HALF))
            step += 1


@gluon.jit
def copy_rows(x, inner, xs, x_full, go, full, free, HIDDEN: gl.constexpr, FEATURES: gl.constexpr, TOKENS: gl.constexpr):
    """The partition that copies x once, and the activations as they are needed, into the same room."""
    BLOCK: gl.constexpr = xs.shape[2]
    STAGES: gl.constexpr = HIDDEN // (2 * PANELS * BLOCK)
    PAIRS: gl.constexpr = HIDDEN // (2 * X_PARTS * BLOCK)  # of panels, in one part of x
    instruction("griddepcontrol.wait;")
    for part in range(X_PARTS):
        bar = x_full.index(part)
        mbarrier.expect(bar, 2 * PAIRS * TOKENS * LINE_BYTES)
        for k in range(part * PAIRS, part * PAIRS + PAIRS):
            room = xs.index(k)
            tma.async_copy_global_to_shared(x, [0, 2 * k * BLOCK], bar, room.slice(0, TOKENS))
            tma.async_copy_global_to_shared(x, [0, (2 * k + 1) * BLOCK], bar, room.slice(TOKENS, TOKENS))
    mbarrier.wait(go, 0)
    instruction("fence.proxy.async.global;")
    step = 0
    for _ in range(gl.program_id(0) * HALF, HIDDEN, gl.num_programs(0) * HALF):
        for k in range(FEATURES // (2 * PANELS * BLOCK)):
            stage = step % STAGES
            mbarrier.wait(free.index(stage), (step // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, 2 * PANELS * TOKENS * LINE_BYTES)
            for p in gl.static_range(PANELS):
                room = xs.index(stage * PANELS + p)
                column = (k * PANELS + p) * BLOCK
                tma.async_copy_global_to_shared(inner, [0, column], bar, room.slice(0, TOKENS))
                tma.async_copy_global_to_shared(inner, [0, FEATURES // 2 + column], bar, room.slice(TOKENS, TOKENS))
            step += 1


@gluon.jit
def row_scales(largest, TOKENS: gl.constexpr):
    """float32 [TOKENS], of every row's activations: as `tenon_triton.ops.float8.row_scale`."""
    L: gl.constexpr = gl.BlockedLayout([1, TOKENS], [32, 1], [4, 1], [1, 0])
    program = gl.expand_dims(gl.arange(0, MOST_PROGRAMS, gl.SliceLayout(1, L)), 1)
    token = gl.expand_dims(gl.arange(0, TOKENS, gl.SliceLayout(0, L)), 0)
    peak = gl.max(gl.load(largest + program * TOKENS + token, mask=program < gl.num_programs(0), other=0.0), 0)
    return gl.where(peak > 0.0, gl.maximum(peak / 448.0, 1e-37), 1.0)


@gluon.jit
def quantize(inner, quantized, scale, first, end, rows, FEATURES: gl.constexpr):
    """This program's activations as e4m3 of scale [TOKENS]."""
    TOKENS: gl.constexpr = scale.shape[0]
    L: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = gl.arange(0, TOKENS, gl.SliceLayout(1, L))
    factor = gl.expand_dims(1.0 / gl.convert_layout(scale, gl.SliceLayout(1, L)), 1)
    for start in range(first, end, AT_ONCE):
        place = start + gl.arange(0, AT_ONCE, gl.SliceLayout(0, L))
        at = gl.expand_dims(row, 1) * FEATURES + gl.expand_dims(place, 0)
        inside = gl.expand_dims(row < rows, 1) & gl.expand_dims(place < end, 0)
        held = gl.load(inner + at, mask=inside, other=0.0).to(gl.float32)
        small = gl.minimum(gl.maximum(held * factor, -448.0), 448.0).to(gl.float8e4nv)
        gl.store(quantized + at, small, mask=inside)


@gluon.jit
def gate_and_up(sums):
    """Two of [HALF, TOKENS], of sums [LINES, TOKENS]."""
    TOKENS: gl.constexpr = sums.shape[1]
    L: gl.constexpr = gl.BlockedLayout([1, 1, 2], [8, 4, 1], [4, 1, 1], [2, 1, 0])
    both = gl.permute(gl.reshape(sums, [2, HALF, TOKENS]), (1, 2, 0))
    return gl.split(gl.convert_layout(both, L))


@gluon.jit
def both_halves(sums):
    """[HALF, TOKENS] of sums [LINES, 2 * TOKENS]: the first lines by the first tokens, plus the last by the last."""
    TOKENS: gl.constexpr = sums.shape[1] // 2
    L: gl.constexpr = gl.BlockedLayout([1, 1, 2, 2], [8, 4, 1, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    four = gl.permute(gl.reshape(sums, [2, HALF, 2, TOKENS]), (1, 3, 0, 2))
    first, last = gl.split(gl.convert_layout(four, L))
    near, _ = gl.split(first)
    _, far = gl.split(last)
    return near + far


@gluon.jit
def activations(
    ring, xs, full, free, x_full, x_scale, scale, feature, end, step, rows,
    HIDDEN: gl.constexpr, FEATURES: gl.constexpr, STAGES: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """(silu(gate) * up of HALF features, float32 rounded to DTYPE, zeros outside: [HALF, TOKENS], next step)."""
    TOKENS: gl.constexpr = xs.shape[1] // 2
    BLOCK: gl.constexpr = ring.shape[2]
    DEEP: gl.constexpr = 256 // ring.dtype.primitive_bitwidth
    WIDE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TOKENS, DEEP])
    PART: gl.constexpr = HIDDEN // (PANELS * BLOCK * X_PARTS)
    sums = gl.zeros([LINES, TOKENS], gl.float32, WIDE)
    for k in range(HIDDEN // (PANELS * BLOCK)):
        stage = step % STAGES
        mbarrier.wait(x_full.index(k // PART), 0)
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        for p in gl.static_range(PANELS):
            right = xs.index(k * (PANELS // 2) + p // 2).slice(p % 2 * TOKENS, TOKENS).permute((1, 0))
            sums = warpgroup_mma(ring.index(stage * PANELS + p), right, sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index(stage), count=1)
        step += 1
    gate, up = gate_and_up(sums)
    L: gl.constexpr = gate.type.layout
    place = feature + gl.arange(0, HALF, gl.SliceLayout(1, L))
    column = gl.arange(0, TOKENS, gl.SliceLayout(0, L))
    if x_scale is not None:
        of_row = gl.expand_dims(gl.load(x_scale + column, mask=column < rows, other=0.0), 0)
        gate = gate * gl.expand_dims(gl.load(scale + place, mask=place < end, other=0.0), 1) * of_row
        up = up * gl.expand_dims(gl.load(scale + FEATURES + place, mask=place < end, other=0.0), 1) * of_row
    gate = silu(gate.to(DTYPE).to(gl.float32)).to(DTYPE).to(gl.float32)
    found = (gate * up.to(DTYPE).to(gl.float32)).to(DTYPE).to(gl.float32)
    inside = gl.expand_dims(place < end, 1) & gl.expand_dims(column < rows, 0)
    return gl.where(inside, found, 0.0), step


@gluon.jit
def store_activations(inner, found, feature, end, rows, FEATURES: gl.constexpr):
    """found [HALF, TOKENS] to its place in inner [rows, FEATURES]."""
    L: gl.constexpr = found.type.layout
    place = feature + gl.arange(0, HALF, gl.SliceLayout(1, L))
    column = gl.arange(0, found.shape[1], gl.SliceLayout(0, L))
    at = gl.expand_dims(column, 0) * FEATURES + gl.expand_dims(place, 1)
    inside = gl.expand_dims(place < end, 1) & gl.expand_dims(column < rows, 0)
    gl.store(inner + at, found.to(inner.dtype.element_ty), mask=inside)


@gluon.jit
def multiply(
    y, inner, quantized, largest, x_scale, gate_up_scale, down_scale, counter, ring, xs, bars, rows,
    HIDDEN: gl.constexpr, FEATURES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The partition that multiplies."""
    full, free, x_full, go, inner_full, inner_free = bars
    TOKENS: gl.constexpr = xs.shape[1] // 2
    BLOCK: gl.constexpr = ring.shape[2]
    DEEP: gl.constexpr = 256 // ring.dtype.primitive_bitwidth
    LAST: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 2 * TOKENS, DEEP]
    )
    DTYPE: gl.constexpr = y.dtype.element_ty
    instruction("griddepcontrol.launch_dependents;")
    first, end = share(FEATURES)
    ROW: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0]))
    peak = gl.zeros([TOKENS], gl.float32, ROW)
    step = 0
    for feature in range(first, end, HALF):
        found, step = activations(
            ring, xs, full, free, x_full, x_scale, gate_up_scale, feature, end, step, rows, HIDDEN, FEATURES, STAGES,
            DTYPE,
        )  # fmt: skip
        store_activations(inner, found, feature, end, rows, FEATURES)
        if largest is not None:
            peak = gl.maximum(peak, gl.convert_layout(gl.max(gl.abs(found), 0), ROW))
    if largest is not None:
        gl.store(largest + gl.program_id(0) * TOKENS + gl.arange(0, TOKENS, ROW), peak)
        grid_barrier(counter)
        inner_scale = row_scales(largest, TOKENS)
        quantize(inner, quantized, inner_scale, first, end, rows, FEATURES)
    grid_barrier(counter)
    mbarrier.arrive(go, count=1)
    INNER_STAGES: gl.constexpr = HIDDEN // (2 * PANELS * BLOCK)
    inner_step = 0
    for row in range(gl.program_id(0) * HALF, HIDDEN, gl.num_programs(0) * HALF):
        wide = gl.zeros([LINES, 2 * TOKENS], gl.float32, LAST)
        for _ in range(FEATURES // (2 * PANELS * BLOCK)):
            stage = step % STAGES
            inner_stage = inner_step % INNER_STAGES
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            mbarrier.wait(inner_full.index(inner_stage), inner_step // INNER_STAGES & 1)
            for p in gl.static_range(PANELS):
                right = xs.index(inner_stage * PANELS + p).permute((1, 0))
                wide = warpgroup_mma(ring.index(stage * PANELS + p), right, wide, is_async=True)
            wide = warpgroup_mma_wait(0, deps=[wide])
            mbarrier.arrive(free.index(stage), count=1)
            mbarrier.arrive(inner_free.index(inner_stage), count=1)
            step += 1
            inner_step += 1
        found = both_halves(wide)
        LY: gl.constexpr = found.type.layout
        line = row + gl.arange(0, HALF, gl.SliceLayout(1, LY))
        column = gl.arange(0, TOKENS, gl.SliceLayout(0, LY))
        if largest is not None:
            of_row = gl.expand_dims(gl.convert_layout(inner_scale, gl.SliceLayout(0, LY)), 0)
            found = found * gl.expand_dims(gl.load(down_scale + line), 1) * of_row
        gl.store(
            y + gl.expand_dims(column, 0) * HIDDEN + gl.expand_dims(line, 1),
            found.to(DTYPE),
            mask=gl.expand_dims(column < rows, 0),
        )


@gluon.jit(do_not_specialize=["rows"])
def persistent_mlp_kernel(
    y, x, gate_up, down, inner_lines, inner, quantized, largest, x_scale, gate_up_scale, down_scale, counter, rows,
    HIDDEN: gl.constexpr, FEATURES: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """y [rows, HIDDEN] = (silu(x gate^T) * (x up^T)) down^T, bfloat16, rows at most TOKENS.

    x, gate_up, down, inner_lines: descriptors of [rows, HIDDEN], [2 * FEATURES, HIDDEN], [HIDDEN, FEATURES] and inner
    or quantized [rows, FEATURES], in boxes of TOKENS, GRAIN, HALF and TOKENS lines. e4m3: x and weights come with
    scales, x_scale [rows] and one a line of the weights, float32; largest: float32 [programs, TOKENS]. inner,
    quantized and largest are written. One launch at a time: its programs wait for each other, so all must have a unit.
    """
    BLOCK: gl.constexpr = LINE_BYTES * 8 // x.dtype.primitive_bitwidth
    INNER_STAGES: gl.constexpr = HIDDEN // (2 * PANELS * BLOCK)
    ring = gl.allocate_shared_memory(gate_up.dtype, [STAGES * PANELS, LINES, BLOCK], gate_up.layout)
    xs = gl.allocate_shared_memory(x.dtype, [HIDDEN // (2 * BLOCK), 2 * TOKENS, BLOCK], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    inner_full = gl.allocate_shared_memory(gl.int64, [INNER_STAGES, 1], mbarrier.MBarrierLayout())
    inner_free = gl.allocate_shared_memory(gl.int64, [INNER_STAGES, 1], mbarrier.MBarrierLayout())
    x_full = gl.allocate_shared_memory(gl.int64, [X_PARTS, 1], mbarrier.MBarrierLayout())
    go = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(INNER_STAGES):
        mbarrier.init(inner_full.index(i), count=1)
        mbarrier.init(inner_free.index(i), count=1)
    for i in gl.static_range(X_PARTS):
        mbarrier.init(x_full.index(i), count=1)
    mbarrier.init(go, count=1)
    fence_async_shared()
    bars = (full, free, x_full, go, inner_full, inner_free)
    gl.warp_specialize(
        [
            (
                multiply,
                (
                    y, inner, quantized, largest, x_scale, gate_up_scale, down_scale, counter, ring, xs, bars, rows,
                    HIDDEN, FEATURES, STAGES,
                ),
            ),
            (copy_weights, (gate_up, down, ring, full, free, HIDDEN, FEATURES, STAGES)),
            (copy_rows, (x, inner_lines, xs, x_full, go, inner_full, inner_free, HIDDEN, FEATURES, TOKENS)),
        ],
        [1, 1],
        [COPY_REGISTERS, COPY_REGISTERS],
    )  # fmt: skip
