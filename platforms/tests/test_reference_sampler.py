"""The reference sampler and log-probabilities against the literal definition in float64, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_oracle import assert_best, edited, noisy, penalized

from tenon_platforms.batch import NUM_ROW_COLUMNS, RowColumn, SamplingBatch
from tenon_platforms.noise import sequence_key
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.sampling_reference import unpack_mask
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import GREEDY, SamplingMode

pytestmark = pytest.mark.unit
VOCAB = 37
BOUND = 2e-5
EVERYTHING = SamplingMode(noise=True, filters=True, penalties=True, edits=True)
TOKENS = st.integers(0, VOCAB - 1)


@dataclass(slots=True, kw_only=True)
class Row:
    """One row's request."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0
    position: int = 9
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    bias: dict[int, float] = field(default_factory=dict)
    allowed: list[int] | None = None
    banned: list[int] = field(default_factory=list)
    until: int = 0

    @property
    def is_penalized(self) -> bool:
        return (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """What the sampler takes the best of."""
        banned = self.banned if self.position < self.until else []
        scores = edited(logits, bias=self.bias, allowed=self.allowed, banned=banned)
        if self.is_penalized:
            scores = penalized(
                scores,
                prompt=self.prompt,
                output=self.output,
                repetition=self.repetition,
                frequency=self.frequency,
                presence=self.presence,
            )
        return noisy(
            scores,
            key=sequence_key(self.seed, 0),
            position=self.position,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )


def batch_of(rows: list[Row], mode: SamplingMode) -> SamplingBatch:
    count = len(rows)
    params = np.zeros((count, NUM_ROW_COLUMNS), dtype=np.int32)
    floats = params.view(np.float32)
    counts, edits = np.zeros((count + 1, 2, VOCAB), dtype=np.int32), np.zeros((count + 1, 2, VOCAB), dtype=np.float32)
    counts[0], edits[0] = 1000, 0.0  # the counts slot of nobody is garbage that no row may see
    for i, row in enumerate(rows):
        values = (row.temperature, row.top_p, row.min_p, row.repetition, row.presence, row.frequency)
        floats[i, :6] = values
        params[i, RowColumn.TOP_K] = row.top_k
        key = np.array(sequence_key(row.seed, 0), dtype=np.uint32).view(np.int32)
        params[i, RowColumn.NOISE_KEY0], params[i, RowColumn.NOISE_KEY1] = key
        params[i, RowColumn.COUNT_SLOT] = i + 1 if row.is_penalized else 0
        params[i, RowColumn.EDIT_SLOT], params[i, RowColumn.EDIT_UNTIL] = i + 1, row.until
        counts[i + 1, 0, row.prompt] = 1
        np.add.at(counts[i + 1, 1], row.output, 1)
        if row.allowed is not None:
            edits[i + 1, 0] = -np.inf
            edits[i + 1, 0, row.allowed] = 0
        for token, bias in row.bias.items():
            edits[i + 1, 0, token] += bias
        edits[i + 1, 1, row.banned] = -np.inf
    return SamplingBatch(
        mode=mode,
        positions=torch.tensor([row.position for row in rows], dtype=torch.int32),
        params=torch.from_numpy(params),
        counts=torch.from_numpy(counts),
        edits=torch.from_numpy(edits),
    )


def sampler() -> object:
    return OpTable(platform="reference").choose(SamplerSpec(vocab_size=VOCAB)).run


def logits_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, VOCAB)) * 3).float()


ROWS = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 5, VOCAB, 10 * VOCAB]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition=st.sampled_from([1.0, 0.5, 1.3]),
    presence=st.sampled_from([0.0, 0.7, -1.0]),
    frequency=st.sampled_from([0.0, 0.4, -0.2]),
    seed=st.integers(-5, 2**64 - 1),
    position=st.integers(1, 5000),
    prompt=st.lists(TOKENS, max_size=6),
    output=st.lists(TOKENS, max_size=6),
    bias=st.dictionaries(TOKENS, st.floats(-9, 9, width=32), max_size=3),
    allowed=st.none() | st.lists(TOKENS, min_size=4, max_size=9, unique=True),
    banned=st.lists(TOKENS, max_size=3, unique=True),
    until=st.integers(0, 5000),
)


@settings(max_examples=120, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=5), seed=st.integers(0, 10**6))
def test_every_mode_equals_the_definition(rows: list[Row], seed: int) -> None:
    logits, batch = logits_of(len(rows), seed), batch_of(rows, EVERYTHING)
    before = batch.counts.clone()
    tokens = sampler()(logits, batch)  # type: ignore[operator]
    assert tokens.dtype == torch.int32 and tokens.shape == (len(rows),)
    for i, row in enumerate(rows):
        token = int(tokens[i])
        assert_best(row.scores(logits[i].double().numpy()), token, bound=BOUND, label=f"row {i}: {row}")
        counted = before[i + 1].clone()
        counted[1, token] += row.is_penalized
        assert torch.equal(batch.counts[i + 1], counted)


def test_greedy_takes_the_lowest_of_equal_ids_and_ignores_parameters() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, [5, 9, 30]] = 2.0
    logits[2] = -torch.inf
    logits[2, 36] = -4.0
    rows = [Row(temperature=0.0, top_k=1, seed=i) for i in range(3)]
    assert sampler()(logits, batch_of(rows, GREEDY)).tolist() == [0, 5, 36]  # type: ignore[operator]


def test_a_greedy_row_beside_noisy_ones_stays_greedy() -> None:
    logits = logits_of(4)
    rows = [Row(temperature=t, top_k=2, seed=i) for i, t in enumerate((0.0, 1.0, 0.0, 9.0))]
    tokens = sampler()(logits, batch_of(rows, SamplingMode(noise=True, filters=True)))  # type: ignore[operator]
    best = logits.argmax(dim=-1)
    assert tokens[0] == best[0] and tokens[2] == best[2]


def test_a_row_is_the_same_in_any_batch_and_mode() -> None:
    logits, row = logits_of(6), Row(temperature=1.0, seed=5, position=77)
    alone = sampler()(logits[3:4], batch_of([row], SamplingMode(noise=True)))  # type: ignore[operator]
    rows = [Row(temperature=2.0, top_k=3, seed=9, presence=1.0) for _ in range(6)]
    rows[3] = row
    assert sampler()(logits, batch_of(rows, EVERYTHING))[3] == alone[0]  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_sampled_in_float32(dtype: torch.dtype) -> None:
    logits = logits_of(5).to(dtype)
    rows = [Row(temperature=0.8, top_p=0.9, seed=i, position=i + 3) for i in range(5)]
    tokens = sampler()(logits, batch_of(rows, EVERYTHING))  # type: ignore[operator]
    for i, row in enumerate(rows):
        assert_best(row.scores(logits[i].double().numpy()), int(tokens[i]), bound=BOUND)


def test_repeated_penalties_accumulate_over_calls() -> None:
    logits = torch.full((1, VOCAB), 1.0)
    batch = batch_of([Row(frequency=0.5, presence=0.0)], SamplingMode(penalties=True))
    chosen = [int(sampler()(logits, batch)) for _ in range(VOCAB + 2)]  # type: ignore[operator]
    assert chosen == [*range(VOCAB), 0, 1]


def test_grammar_masks_by_bits() -> None:
    mask = np.zeros((2, -(-VOCAB // 32)), dtype=np.int32)
    mask[0, 0] = np.uint32(1 << 31).astype(np.int32)  # token 31, the sign bit
    mask[1, 1] = 1 << 4  # token 36
    batch = batch_of([Row(), Row()], SamplingMode(grammar=True))
    batch.grammar_mask = torch.from_numpy(mask)
    assert sampler()(logits_of(2), batch).tolist() == [31, 36]  # type: ignore[operator]
    assert torch.where(unpack_mask(batch.grammar_mask, VOCAB))[1].tolist() == [31, 36]


@pytest.mark.parametrize("k", [0, 1, 5, VOCAB])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_token_logprobs(k: int, dtype: torch.dtype) -> None:
    logits = logits_of(6).to(dtype)
    tokens = torch.tensor([0, 36, 5, 5, 11, 20], dtype=torch.int32)
    found = OpTable(platform="reference").choose(TokenLogprobsSpec(vocab_size=VOCAB)).run(logits, tokens, k)
    exact = logits.double().log_softmax(dim=-1)
    assert (found.chosen.dtype, found.rank.dtype, found.top_ids.dtype) == (torch.float32, torch.int32, torch.int32)
    for row, token in enumerate(tokens.tolist()):
        assert abs(float(found.chosen[row]) - float(exact[row, token])) < 1e-5
        assert int(found.rank[row]) == int((exact[row] > exact[row, token]).sum()) + 1
        best = exact[row].sort(descending=True).values[:k]
        np.testing.assert_allclose(found.top[row].double(), best, atol=1e-5)
        np.testing.assert_allclose(exact[row, found.top_ids[row].long()], best, atol=1e-12)


def test_logprobs_of_masked_logits_are_minus_infinity() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 3] = 5.0
    found = (
        OpTable(platform="reference")
        .choose(TokenLogprobsSpec(vocab_size=VOCAB))
        .run(logits, torch.tensor([4], dtype=torch.int32), 1)
    )
    assert found.chosen.item() == -np.inf and found.top.item() == 0.0 and found.top_ids.item() == 3
    assert found.rank.item() == 2
