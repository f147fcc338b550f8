"""Reference kernels of `rows.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernel import Kernel, KernelFlags

if TYPE_CHECKING:
    from ..batch import RowState, StepInputs
    from .rows import PrepareInputsSpec, RowWritesSpec
    from .table import OpTable


def prepare_inputs(spec: PrepareInputsSpec, table: OpTable) -> Kernel:
    """run(inputs, state) -> (token_ids, slots).

    token_ids: int32 [tokens], -1 replaced by the row's last token. slots: one int32 [tokens] a group, where each
    token's K and V go; padding tokens go to the null block (slots below block_size).
    """

    def run(inputs: StepInputs, state: RowState) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows = inputs.rows.index_select(0, inputs.token_rows)  # [tokens]
        token_ids = torch.where(inputs.token_ids < 0, state.last_tokens.index_select(0, rows), inputs.token_ids)
        positions = inputs.positions[0]
        padding = torch.arange(len(rows), dtype=torch.int32, device=rows.device) >= inputs.num_valid[0]
        slots = []
        for block_table, block_size in zip(state.block_tables.unbind(0), spec.block_sizes, strict=True):
            blocks = block_table[rows, torch.div(positions, block_size, rounding_mode="floor")]
            slots.append(blocks.masked_fill(padding, 0) * block_size + positions % block_size)
        return token_ids, tuple(slots)

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))


def row_writes(spec: RowWritesSpec, table: OpTable) -> Kernel:
    """run(state, places, blocks, rows, params) -> None.

    places: int32 [n], flat indices into state.block_tables; blocks: int32 [n], what to write there. rows: int32 [m];
    params: int32 [m, columns]. An index that comes twice comes with the same value.
    """

    def run(state: RowState, places: Tensor, blocks: Tensor, rows: Tensor, params: Tensor) -> None:
        if places.shape[0]:
            state.block_tables.view(-1)[places] = blocks
        if rows.shape[0]:
            state.params[rows] = params

    return Kernel(
        name="reference", run=run, flags=KernelFlags(graph_safe=False, batch_invariant=True, in_place=("state",))
    )
