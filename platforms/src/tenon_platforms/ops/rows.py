"""Ops on the rows' device memory. Reference: `rows_reference.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .spec import Spec


@dataclass(frozen=True, kw_only=True)
class PrepareInputsSpec(Spec):
    """From a step's index tensors and the rows' memory to token ids and KV slots. block_sizes: one a layer group."""

    op: ClassVar[str] = "prepare_inputs"
    block_sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RowWritesSpec(Spec):
    """Apply what changed in the rows since the last step, before it is planned: table entries, new rows' parameters."""

    op: ClassVar[str] = "row_writes"
    num_groups: int
