"""The rows of a step that are no decodes, as libraries hear of them: the host's numbers, no device is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tenon_platforms.batch import AttentionBatch
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import No
from tenon_platforms.ops.attention import AttentionSpec

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRows:
    """Rows [first_row, end_row) of a step without padding, and their tokens [first_token, end_token).

    query_lens, seq_lens: int32 [rows]; seq_lens as exact as the host's are.
    """

    first_row: int
    end_row: int
    first_token: int
    end_token: int
    query_lens: Ints
    seq_lens: Ints

    @classmethod
    def of(cls, batch: AttentionBatch, first_row: int) -> PromptRows | None:
        """None where the key is static: what is captured may not hold the host's numbers. None without such rows."""
        host = batch.host
        if batch.key.static or first_row >= host.num_rows:
            return None
        return cls(
            first_row=first_row,
            end_row=host.num_rows,
            first_token=int(host.query_lens[:first_row].sum()),
            end_token=host.num_tokens,
            query_lens=host.query_lens[first_row:],
            seq_lens=host.seq_lens[first_row:],
        )

    @property
    def longest(self) -> int:
        """Most tokens of a row."""
        return int(self.query_lens.max())


def refusal(spec: AttentionSpec, head_dims: tuple[int, ...]) -> No | None:
    """What no library serves through us: element types, head sizes, sinks, tree masks; or None."""
    if spec.dtype not in (DType.BFLOAT16, DType.FLOAT16):
        return No(f"computes in bfloat16 or float16, not in {spec.dtype}")
    if spec.kv_dtype != spec.dtype:
        return No(f"no KV cache in {spec.kv_dtype} under queries in {spec.dtype}", "--kv-cache-dtype auto")
    if spec.head_dim not in head_dims:
        return No(f"heads of {', '.join(map(str, head_dims))} elements, not of {spec.head_dim}")
    if spec.sinks:
        return No("has no sinks")
    if spec.tree_mask:
        return No("has no tree mask")
    if spec.sliding_window and not spec.causal:
        return No("no sliding window where tokens see later ones")
    return None


def cumulated(counts: Ints) -> Ints:
    """int32 [rows + 1], from 0."""
    return np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
