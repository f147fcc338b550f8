"""The rows' device memory, in one launch each: token ids and KV slots; table entries and parameters."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.batch import RowState, StepInputs
from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec

from .. import early
from ..early import wait

BLOCK = 128


@triton.jit(do_not_specialize=["num_tokens", "group_stride", "row_stride"])
def _prepare_inputs(
    token_ids,
    token_rows,
    positions,
    rows,
    num_valid,
    last_tokens,
    block_tables,
    out_ids,
    out_slots,
    num_tokens,
    group_stride,
    row_stride,
    BLOCK_SIZES: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)  # and no trigger: what begins after this kernel may take a step's inputs to be complete
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < num_tokens
    row = tl.load(rows + tl.load(token_rows + token, mask=inside, other=0), mask=inside, other=0)
    known = tl.load(token_ids + token, mask=inside, other=0)
    newest = tl.load(last_tokens + row, mask=inside & (known < 0), other=0)
    tl.store(out_ids + token, tl.where(known < 0, newest, known), mask=inside)
    position = tl.load(positions + token, mask=inside, other=0)
    valid = inside & (token < tl.load(num_valid))
    for group in tl.static_range(NUM_GROUPS):
        size = BLOCK_SIZES[group]
        place = group * group_stride.to(tl.int64) + row.to(tl.int64) * row_stride + position // size
        block = tl.load(block_tables + place, mask=valid, other=0)  # padding goes to the null block
        tl.store(out_slots + group * num_tokens + token, block * size + position % size, mask=inside)


@triton.jit(do_not_specialize=["places", "blocks", "rows", "new_params", "num_places", "num_rows"])
def _row_writes(
    block_tables,
    row_params,
    places,
    blocks,
    rows,
    new_params,
    num_places,
    num_rows,
    NUM_COLUMNS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    write = index < num_places
    place = tl.load(places + index, mask=write, other=0)
    tl.store(block_tables + place, tl.load(blocks + index, mask=write, other=0), mask=write)
    column = tl.arange(0, COLUMNS)
    known = (index < num_rows)[:, None] & (column < NUM_COLUMNS)[None, :]
    row = tl.load(rows + index, mask=index < num_rows, other=0)
    fresh = tl.load(new_params + index[:, None] * NUM_COLUMNS + column[None, :], mask=known, other=0)
    tl.store(row_params + row[:, None] * NUM_COLUMNS + column[None, :], fresh, mask=known)


def prepare_inputs(spec: PrepareInputsSpec) -> Kernel | No:
    """run(inputs, state) -> (token_ids, slots of each group), as the reference's."""
    sizes = spec.block_sizes

    def run(inputs: StepInputs, state: RowState) -> tuple[Tensor, tuple[Tensor, ...]]:
        tokens, device, tables = inputs.token_ids.shape[0], inputs.token_ids.device, state.block_tables
        token_ids = torch.empty((tokens,), dtype=torch.int32, device=device)
        slots = torch.empty((len(sizes), tokens), dtype=torch.int32, device=device)
        if tokens:
            _prepare_inputs[(triton.cdiv(tokens, BLOCK),)](
                inputs.token_ids,
                inputs.token_rows,
                inputs.positions,
                inputs.rows,
                inputs.num_valid,
                state.last_tokens,
                tables,
                token_ids,
                slots,
                tokens,
                tables.stride(0),
                tables.stride(1),
                BLOCK_SIZES=sizes,
                NUM_GROUPS=len(sizes),
                BLOCK=BLOCK,
                num_warps=4,
                **early.options(),
            )
        return token_ids, slots.unbind(0)

    return Kernel(name="triton one launch", run=run, flags=KernelFlags(batch_invariant=True))


def row_writes(spec: RowWritesSpec) -> Kernel | No:
    """run(state, places, blocks, rows, params) -> None, as the reference's."""

    def run(state: RowState, places: Tensor, blocks: Tensor, rows: Tensor, params: Tensor) -> None:
        count = max(places.shape[0], rows.shape[0])
        if count:
            columns = state.params.shape[1]
            _row_writes[(triton.cdiv(count, BLOCK),)](
                state.block_tables,
                state.params,
                places,
                blocks,
                rows,
                params,
                places.shape[0],
                rows.shape[0],
                NUM_COLUMNS=columns,
                COLUMNS=triton.next_power_of_2(columns),
                BLOCK=BLOCK,
                num_warps=4,
            )

    return Kernel(name="triton one launch", run=run, flags=KernelFlags(batch_invariant=True, in_place=("state",)))
