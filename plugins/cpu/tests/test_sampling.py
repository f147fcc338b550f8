"""The sampler gives the reference's tokens, row by row, whichever of its short cuts it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_cpu.ops import sampling
from tenon_platforms.batch import NUM_ROW_COLUMNS, RowColumn, SamplingBatch
from tenon_platforms.noise import gumbel, sequence_key, token_bits
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.ops.sampling_reference import sampler as reference_sampler
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import GREEDY, SamplingMode

pytestmark = pytest.mark.unit
DRAW = SamplingMode(noise=True)
FILTER = SamplingMode(noise=True, filters=True)


def batch_of(rows: int, mode: SamplingMode, columns: dict[RowColumn, list[float]], vocab: int = 1) -> SamplingBatch:
    params = torch.zeros(rows, NUM_ROW_COLUMNS, dtype=torch.int32)
    floats = params.view(torch.float32)
    floats[:, RowColumn.TEMPERATURE] = floats[:, RowColumn.TOP_P] = floats[:, RowColumn.REPETITION] = 1.0
    for row in range(rows):
        keys = np.array(sequence_key(7 + row, 0), dtype=np.uint32).view(np.int32)
        params[row, RowColumn.NOISE_KEY0], params[row, RowColumn.NOISE_KEY1] = int(keys[0]), int(keys[1])
    for column, values in columns.items():
        target = params if column == RowColumn.TOP_K else floats
        target[:, column] = torch.tensor(values, dtype=target.dtype)
    positions = torch.arange(100, 100 + rows, dtype=torch.int32)
    counts = torch.zeros(rows + 1, 2, vocab, dtype=torch.int32)
    return SamplingBatch(mode=mode, positions=positions, params=params, counts=counts, edits=counts.float())


def both(logits: Tensor, batch: SamplingBatch) -> tuple[list[int], list[int]]:
    table, spec = OpTable(platform="cpu"), SamplerSpec(vocab_size=logits.shape[1])
    found = sampling.sampler(spec, table).run(logits.clone(), batch)
    assert found.dtype == torch.int32
    return found.tolist(), reference_sampler(spec, table).run(logits.clone(), batch).tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    rows=st.integers(1, 5),
    vocab=st.sampled_from([2, 33, 1000, 5000]),
    spread=st.sampled_from([0.1, 3.0, 12.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_tokens_are_the_references(
    data: Any, rows: int, vocab: int, spread: float, dtype: torch.dtype, seed: int
) -> None:
    def each(values: list[float]) -> list[float]:
        found: list[float] = data.draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))
        return found

    logits = (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)
    columns = {RowColumn.TEMPERATURE: each([0.0, 0.3, 1.0, 2.0])}
    mode = data.draw(st.sampled_from([GREEDY, DRAW, FILTER]))
    if mode == GREEDY:
        columns = {RowColumn.TEMPERATURE: [0.0] * rows}
    if mode == FILTER:
        columns[RowColumn.TOP_K] = each([0, 1, 2, 40, 2000])
        columns[RowColumn.TOP_P] = each([1.0, 0.95, 0.5, 0.01])
        columns[RowColumn.MIN_P] = each([0.0, 0.05, 0.9])
    found, wanted = both(logits, batch_of(rows, mode, columns))
    assert found == wanted


def test_equal_logits_go_to_the_lowest_ids() -> None:
    logits = torch.zeros(2, 300)
    logits[:, 100:110] = 5.0
    columns = {RowColumn.TOP_K: [3.0, 1.0], RowColumn.TEMPERATURE: [1.0, 0.0]}
    found, wanted = both(logits, batch_of(2, FILTER, columns))
    assert found == wanted
    assert found[1] == 100


@pytest.mark.parametrize("columns", [{RowColumn.TOP_P: [0.99] * 8}, {RowColumn.MIN_P: [0.5] * 8}])
def test_a_cut_beyond_the_best_few_is_left_to_the_reference(columns: dict[RowColumn, list[float]]) -> None:
    """Nearly flat logits: most of 5,000 tokens survive, so eight draws from the best 1,024 alone would differ."""
    found, wanted = both(torch.randn(8, 5000) * 0.05, batch_of(8, FILTER, columns))
    assert found == wanted


def test_noise_is_the_contracts() -> None:
    batch = batch_of(2, DRAW, {})
    ids = torch.tensor([[0, 1, 2, 999], [7, 6, 500, 3]])
    found = sampling.gumbel_of(ids, batch)
    for row in range(2):
        wanted = gumbel(token_bits(sequence_key(7 + row, 0), 100 + row, 1000))
        np.testing.assert_allclose(found[row].numpy(), wanted[ids[row].numpy()], rtol=1e-5, atol=1e-6)


def test_few_ids_are_drawn_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peaked distribution needs no noise for the whole vocabulary."""
    drawn: list[int] = []
    original = sampling.gumbel_of
    monkeypatch.setattr(sampling, "gumbel_of", lambda ids, batch: drawn.append(ids.numel()) or original(ids, batch))
    logits = torch.randn(4, 20000) * 0.5
    logits[:, 77] = 30.0
    found, wanted = both(logits, batch_of(4, DRAW, {}))
    assert found == wanted
    assert sum(drawn) < 4 * 20000 / 10


def test_penalties_go_through_the_reference_and_count() -> None:
    logits = torch.zeros(1, 8)
    logits[0, 3] = 2.0
    mode = SamplingMode(penalties=True)
    batch = batch_of(1, mode, {RowColumn.TEMPERATURE: [0.0], RowColumn.PRESENCE: [5.0]}, vocab=8)
    batch.params[0, RowColumn.COUNT_SLOT] = 1
    run = sampling.sampler(SamplerSpec(vocab_size=8), OpTable(platform="cpu")).run
    assert run(logits, batch).tolist() == [3]
    assert run(logits, batch).tolist() == [0]
