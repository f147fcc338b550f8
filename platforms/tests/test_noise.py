"""The generator of sampling noise: golden values, numpy and torch the same bit for bit, and the right distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_platforms import noise
from tenon_platforms.batch import NUM_ROW_COLUMNS, RowColumn, SamplingBatch
from tenon_platforms.ops import sampling_reference
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import SamplingMode

pytestmark = pytest.mark.unit
WORD = st.integers(0, 2**32 - 1)


def torch_words(*values: int) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array([value], dtype=np.uint32).view(np.int32)) for value in values]


@pytest.mark.parametrize(("key", "counter", "output"), noise.GOLDEN)
def test_golden_values(key: tuple[int, int], counter: tuple[int, int], output: tuple[int, int]) -> None:
    words = [np.array([value], dtype=np.uint32) for value in (*key, *counter)]
    assert tuple(int(word[0]) for word in noise.threefry(*words)) == output
    found = sampling_reference.threefry(*torch_words(*key, *counter))
    assert tuple(int(word.numpy().view(np.uint32)[0]) for word in found) == output


@settings(max_examples=200, deadline=None)
@given(key0=WORD, key1=WORD, counter0=WORD, counter1=WORD)
def test_torch_equals_numpy(key0: int, key1: int, counter0: int, counter1: int) -> None:
    values = (key0, key1, counter0, counter1)
    exact = noise.threefry(*(np.array([value], dtype=np.uint32) for value in values))
    found = sampling_reference.threefry(*torch_words(*values))
    for one, other in zip(exact, found, strict=True):
        assert np.array_equal(one, other.numpy().view(np.uint32))


def batch_of(keys: list[tuple[int, int]], positions: list[int], temperature: float = 1.0) -> SamplingBatch:
    params = np.zeros((len(keys), NUM_ROW_COLUMNS), dtype=np.int32)
    params.view(np.float32)[:, RowColumn.TEMPERATURE] = temperature
    params.view(np.float32)[:, RowColumn.TOP_P] = 1.0
    params[:, RowColumn.NOISE_KEY0 : RowColumn.NOISE_KEY1 + 1] = np.array(keys, dtype=np.uint32).view(np.int32)
    return SamplingBatch(
        mode=SamplingMode(noise=True),
        positions=torch.tensor(positions, dtype=torch.int32),
        params=torch.from_numpy(params),
        counts=torch.zeros(1, 2, 1, dtype=torch.int32),
        edits=torch.zeros(1, 2, 1),
    )


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 256, 1001])
def test_gumbel_noise_of_a_batch_is_each_rows_own(vocab_size: int) -> None:
    keys = [noise.sequence_key(seed, sample) for seed, sample in ((0, 0), (0, 1), (2**64 - 1, 3), (-1, 3), (99, 127))]
    positions = [0, 1, 77, 77, 2**31 - 1]
    found = sampling_reference.gumbel_noise(batch_of(keys, positions), vocab_size).double().numpy()
    for row, (key, position) in enumerate(zip(keys, positions, strict=True)):
        exact = noise.gumbel(noise.token_bits(key, position, vocab_size))
        np.testing.assert_allclose(found[row], exact, rtol=2e-5, atol=2e-6)
    assert np.array_equal(found[2], found[3])  # a seed is taken modulo 2^64


def test_noise_is_finite_for_every_bit_pattern_at_the_ends() -> None:
    ends = noise.gumbel(np.array([0, 511, 512, 2**32 - 1], dtype=np.uint32))
    assert np.isfinite(ends).all() and ends[0] < 0 < ends[3]


def test_sequence_keys_differ_by_seed_sample_and_purpose() -> None:
    keys = {
        noise.sequence_key(seed, sample, purpose)
        for seed in (0, 1, 2**32, 2**63)
        for sample in (0, 1, 2)
        for purpose in noise.Purpose
    }
    assert len(keys) == 4 * 3 * len(noise.Purpose)


def chi_squared(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("vary", ["position", "seed", "sample"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_tokens_follow_the_softmax(vary: str, temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 1.5, -0.5])
    draws = 20_000 if vary == "position" else 5_000  # a key costs a numpy call
    index = range(draws)
    if vary == "position":
        keys, positions = [noise.sequence_key(7, 0)] * draws, list(index)
    elif vary == "seed":
        keys, positions = [noise.sequence_key(seed, 0) for seed in index], [5] * draws
    else:
        keys, positions = [noise.sequence_key(7, sample) for sample in index], [5] * draws
    kernel = OpTable(platform="reference").choose(SamplerSpec(vocab_size=7))
    tokens = kernel.run(logits.expand(draws, -1), batch_of(keys, positions, temperature))
    counts = np.bincount(tokens.numpy(), minlength=7)
    expected = draws * (logits / temperature).double().softmax(0).numpy()
    assert chi_squared(counts, expected) < 22.5  # 6 degrees of freedom: p = 0.001


def test_neighbouring_positions_are_independent() -> None:
    draws = 20_000
    kernel = OpTable(platform="reference").choose(SamplerSpec(vocab_size=4))
    tokens = kernel.run(torch.zeros(draws, 4), batch_of([noise.sequence_key(3, 0)] * draws, list(range(draws)))).numpy()
    pairs = np.bincount(tokens[:-1] * 4 + tokens[1:], minlength=16)
    assert chi_squared(pairs, np.full(16, (draws - 1) / 16)) < 37.7  # 15 degrees of freedom: p = 0.001
