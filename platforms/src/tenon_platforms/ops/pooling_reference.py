"""Reference kernel of `pooling.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernel import Kernel, KernelFlags

if TYPE_CHECKING:
    from .pooling import MeanPoolSpec
    from .table import OpTable


def mean_pool(spec: MeanPoolSpec, table: OpTable) -> Kernel:
    """run(x, token_rows, query_starts, num_valid) -> y.

    x: [tokens, hidden]; token_rows: int32 [tokens], index into rows; query_starts: int32 [rows + 1]; num_valid: int32
    [3], the first entry counts the valid tokens; y: float32 [rows, hidden], the mean over each row's tokens of this
    step, summed in float32 in their order. A row without tokens is zero.
    """

    def run(x: Tensor, token_rows: Tensor, query_starts: Tensor, num_valid: Tensor) -> Tensor:
        rows = query_starts.shape[0] - 1
        padding = torch.arange(x.shape[0], dtype=torch.int32, device=x.device) >= num_valid[0]
        wide = x.float().masked_fill(padding[:, None], 0.0)
        sums = torch.zeros((rows, x.shape[1]), dtype=torch.float32, device=x.device)
        sums = sums.index_add(0, token_rows, wide)
        ends = query_starts.clamp(max=num_valid[0])
        counts = (ends[1:] - ends[:-1]).clamp(min=1)
        return sums / counts[:, None]

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))
