"""Shared pieces of the CPU platform's tests: an op table, attention batches, and the truth in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from tenon_cpu.platform import CPUPlatform
from tenon_platforms.batch import AttentionBatch, HostBatch
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import ShapeKey


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def make_table():  # type: ignore[no-untyped-def]
    """An op table with the platform's offers, by its options; torch's kernels unless said otherwise."""

    def make(**options: object) -> OpTable:
        platform = CPUPlatform({"kernels": "torch", **options})
        table = OpTable(platform="cpu")
        platform.register_ops(table, platform.device())
        return table

    return make


@pytest.fixture
def make_batch():  # type: ignore[no-untyped-def]
    """An attention batch: query and sequence lengths of each row, and every row's blocks."""

    def make(
        query_lens: Sequence[int], seq_lens: Sequence[int], tables: Sequence[Sequence[int]], block_size: int
    ) -> AttentionBatch:
        rows, tokens = len(query_lens), sum(query_lens)
        width = max(map(len, tables)) + 2
        table = torch.tensor([[*row, *([0] * (width - len(row)))] for row in tables], dtype=torch.int32)
        starts = np.concatenate(([0], np.cumsum(query_lens)))
        position = [p for q, s in zip(query_lens, seq_lens, strict=True) for p in range(s - q, s)]
        decodes = next((i for i, q in enumerate(query_lens) if q != 1), rows)
        return AttentionBatch(
            block_table=table,
            block_size=block_size,
            rows=torch.arange(rows, dtype=torch.int32),
            query_starts=torch.from_numpy(starts.astype(np.int32)),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            token_rows=torch.repeat_interleave(torch.arange(rows), torch.tensor(query_lens)).int(),
            positions=torch.tensor([position], dtype=torch.int32),
            num_valid=torch.tensor([tokens, rows, rows], dtype=torch.int32),
            key=ShapeKey(tokens=tokens, rows=rows, logits=rows, max_query=max(query_lens), blocks=width),
            host=HostBatch(
                num_tokens=tokens,
                num_rows=rows,
                num_logits=rows,
                num_decodes=decodes,
                query_lens=np.array(query_lens, dtype=np.int32),
                seq_lens=np.array(seq_lens, dtype=np.int32),
                max_query=max(query_lens),
                max_seq=max(seq_lens),
            ),
        )

    return make
