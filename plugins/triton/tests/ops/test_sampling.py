"""The sampler against the reference: the same ids, ties and all; noise bit for bit; what is drawn is distributed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_platforms.batch import NUM_ROW_COLUMNS, RowColumn, SamplingBatch
from tenon_platforms.noise import gumbel as true_gumbel
from tenon_platforms.noise import sequence_key, token_bits
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.ops.sampling_reference import sampler as reference_sampler
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import GREEDY, SamplingMode
from tenon_triton.ops import choose, noise
from tenon_triton.ops.sampling import sampler

pytestmark = pytest.mark.unit
DRAW = SamplingMode(noise=True)
FILTER = SamplingMode(noise=True, filters=True)


def batch_of(
    rows: int, mode: SamplingMode, columns: dict[RowColumn, list[float]], vocab: int = 1, seed: int = 7
) -> SamplingBatch:
    params = torch.zeros(rows, NUM_ROW_COLUMNS, dtype=torch.int32)
    floats = params.view(torch.float32)
    floats[:, RowColumn.TEMPERATURE] = floats[:, RowColumn.TOP_P] = floats[:, RowColumn.REPETITION] = 1.0
    for row in range(rows):
        keys = np.array(sequence_key(seed + row, 0), dtype=np.uint32).view(np.int32)
        params[row, RowColumn.NOISE_KEY0], params[row, RowColumn.NOISE_KEY1] = int(keys[0]), int(keys[1])
    whole = (RowColumn.TOP_K, RowColumn.COUNT_SLOT, RowColumn.EDIT_SLOT, RowColumn.EDIT_UNTIL)
    for column, values in columns.items():
        target = params if column in whole else floats
        target[:, column] = torch.tensor(values, dtype=target.dtype)
    positions = torch.arange(100, 100 + rows, dtype=torch.int32)
    counts = torch.zeros(rows + 1, 2, vocab, dtype=torch.int32)
    return SamplingBatch(mode=mode, positions=positions, params=params, counts=counts, edits=counts.float())


def both(logits: Tensor, batch: SamplingBatch) -> tuple[list[int], list[int]]:
    spec = SamplerSpec(vocab_size=logits.shape[1])
    counts = batch.counts.clone()
    found = sampler(spec).run(logits.clone(), batch)
    assert found.dtype == torch.int32
    ours, batch.counts = batch.counts, counts
    wanted = reference_sampler(spec, OpTable(platform="reference")).run(logits.clone(), batch)
    assert torch.equal(ours[1:], batch.counts[1:])
    return found.tolist(), wanted.tolist()


@settings(max_examples=8, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 3),
    vocab=st.sampled_from([1, 2, 33, 1000, 2048, 2049, 4099]),
    spread=st.sampled_from([0.1, 3.0, 12.0]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
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
    found, wanted = both(logits, batch_of(rows, mode, columns, vocab))
    assert found == wanted


@settings(max_examples=5, deadline=None)
@given(data=st.data(), vocab=st.sampled_from([31, 64, 2500]), seed=st.integers(0, 1000))
def test_edits_grammar_and_penalties(data: Any, vocab: int, seed: int) -> None:
    rows, generator = 3, torch.Generator().manual_seed(seed)
    flags = [data.draw(st.booleans()) for _ in range(5)]
    mode = SamplingMode(noise=flags[0], filters=flags[1], penalties=flags[2], edits=flags[3], grammar=flags[4])
    columns = {
        RowColumn.TEMPERATURE: [0.0, 0.8, 1.3],
        RowColumn.REPETITION: [1.3, 1.0, 0.7],
        RowColumn.PRESENCE: [0.5, 0.0, -1.0],
        RowColumn.FREQUENCY: [0.0, 0.4, 1.0],
        RowColumn.TOP_K: [0, 5, 0],
        RowColumn.TOP_P: [1.0, 1.0, 0.8],
        RowColumn.COUNT_SLOT: [1, 0, 2],
        RowColumn.EDIT_SLOT: [2, 1, 0],
        RowColumn.EDIT_UNTIL: [101, 101, 200],
    }
    batch = batch_of(rows, mode, columns, vocab)
    batch.counts[1:] = torch.randint(0, 3, batch.counts[1:].shape, generator=generator, dtype=torch.int32)
    batch.edits[1:] = torch.randn(batch.edits[1:].shape, generator=generator)
    batch.edits[1, 0, ::3] = float("-inf")
    words = -(-vocab // 32)
    batch.grammar_mask = torch.randint(-(2**31), 2**31 - 1, (rows, words), generator=generator, dtype=torch.int32)
    batch.grammar_mask[:, 0] |= 2
    found, wanted = both(torch.randn(rows, vocab, generator=generator) * 3, batch)
    assert found == wanted


@pytest.mark.parametrize("vocab", [300, pytest.param(9000, marks=pytest.mark.full)])
def test_equal_logits_go_to_the_lowest_ids(vocab: int) -> None:
    logits = torch.zeros(3, vocab)
    logits[:, 100:110] = 5.0
    columns = {RowColumn.TOP_K: [3.0, 1.0, 20.0], RowColumn.TEMPERATURE: [1.0, 0.0, 1.0]}
    for seed in range(2):
        found, wanted = both(logits, batch_of(3, FILTER, columns, seed=seed))
        assert found == wanted
        assert found[0] in (100, 101, 102)
        assert found[1] == 100


def test_a_row_with_nothing_allowed_and_a_row_of_nan_stay_inside() -> None:
    logits = torch.full((2, 3000), float("-inf"))
    logits[1] = float("nan")
    for mode in (GREEDY, DRAW, FILTER):
        found = sampler(SamplerSpec(vocab_size=3000)).run(logits, batch_of(2, mode, {RowColumn.TOP_K: [3, 3]}))
        assert all(0 <= token < 3000 for token in found.tolist())


def test_no_rows() -> None:
    assert sampler(SamplerSpec(vocab_size=5)).run(torch.zeros(0, 5), batch_of(0, FILTER, {})).tolist() == []


@triton.jit
def _noise(key, position, words, values, n: tl.constexpr):
    pair = tl.arange(0, n)
    key0 = tl.load(key).to(tl.uint32, bitcast=True)
    key1 = tl.load(key + 1).to(tl.uint32, bitcast=True)
    even, odd = noise.threefry(key0, key1, pair.to(tl.uint32), tl.load(position).to(tl.uint32, bitcast=True))
    tl.store(words + 2 * pair, even.to(tl.int32, bitcast=True))
    tl.store(words + 2 * pair + 1, odd.to(tl.int32, bitcast=True))
    tl.store(values + 2 * pair, noise.gumbel(even))
    tl.store(values + 2 * pair + 1, noise.gumbel(odd))


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**31 - 1))
@settings(max_examples=4, deadline=None)
def test_noise_is_the_contracts_bit_for_bit(seed: int, position: int) -> None:
    key = sequence_key(seed, 3)
    words, values = torch.empty(256, dtype=torch.int32), torch.empty(256)
    keys = torch.from_numpy(np.array(key, dtype=np.uint32).view(np.int32))
    _noise[(1,)](keys, torch.tensor([position], dtype=torch.int32), words, values, n=128)
    wanted = token_bits(key, position, 256)
    assert (words.numpy().view(np.uint32) == wanted).all()
    np.testing.assert_allclose(values.numpy(), true_gumbel(wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.full  # the quick profile sees that tokens are the reference's, whose draws the contract's tests look at
def test_draws_follow_the_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "PAIRS", 8)  # small tiles: the interpreter is slow
    vocab, draws = 6, 500
    logits = torch.linspace(-2, 1, vocab)
    batch = batch_of(draws, DRAW, {}, seed=11)
    counts = torch.bincount(sampler(SamplerSpec(vocab_size=vocab)).run(logits.expand(draws, -1).contiguous(), batch),
                            minlength=vocab)  # fmt: skip
    expected = logits.double().softmax(0) * draws
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 23  # 5 degrees of freedom: one in 3,000
