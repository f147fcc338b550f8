"""Reference kernel of `embedding.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernel import Kernel, KernelFlags
from ..torch_dtypes import to_torch
from .linear_reference import dense_weight

if TYPE_CHECKING:
    from .embedding import EmbeddingSpec
    from .table import OpTable
    from .weights import PartTensors


def embedding(spec: EmbeddingSpec, table: OpTable) -> Kernel:
    """run(token_ids, weights) -> y. token_ids: [tokens] integer, each below vocab_size; y: [tokens, hidden].

    Quantized tables stay quantized: only the rows asked for are expanded. The scale is rounded to spec.dtype first.
    """
    dtype = to_torch(spec.dtype)
    scale = float(torch.tensor(spec.scale, dtype=dtype))

    def run(token_ids: Tensor, weights: PartTensors) -> Tensor:
        rows = {name: tensor.index_select(0, token_ids) for name, tensor in weights.items()}
        found = dense_weight(spec.scheme, rows, dtype)
        return found if scale == 1.0 else found * scale

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))
