"""Row writes between executables: the reference's stores, queued."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tenon_platforms.batch import RowState
from tenon_platforms.kernel import Kernel, KernelFlags
from tenon_platforms.ops.rows import RowWritesSpec

from ..device import SimDevice, check_narrow


def row_writes(device: SimDevice) -> Callable[[RowWritesSpec], Kernel]:
    """Makes the offer for one device."""

    def write(tables: Tensor, lines: Tensor, places: Tensor, blocks: Tensor, rows: Tensor, params: Tensor) -> None:
        tables.view(-1)[places] = blocks
        lines[rows] = params

    def run(state: RowState, places: Tensor, blocks: Tensor, rows: Tensor, params: Tensor) -> None:
        for tensor in (places, blocks, rows, params):
            check_narrow("row_writes: an index tensor", tensor.dtype)
        device.launch("row_writes", write, state.block_tables, state.params, places, blocks, rows, params)

    def make(spec: RowWritesSpec) -> Kernel:
        return Kernel(
            name="sim.queued", run=run, flags=KernelFlags(graph_safe=False, batch_invariant=True, in_place=("state",))
        )

    return make
