"""Log-probabilities against float64: chosen, rank, the best few, over rows of several parts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_platforms.ops.sampling import TokenLogprobsSpec
from tenon_triton.ops.logprobs import MOST, token_logprobs

pytestmark = pytest.mark.unit


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(0, 3),
    vocab=st.sampled_from([40, 4096, 4097, 9001]),
    k=st.sampled_from([0, 1, 5, MOST + 1]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 99),
)
def test_logprobs(rows: int, vocab: int, k: int, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocab, generator=generator) * 5).to(dtype)
    if rows:
        logits[0, ::3] = float("-inf")
    tokens = torch.randint(0, vocab, (rows,), generator=generator, dtype=torch.int32)
    found = token_logprobs(TokenLogprobsSpec(vocab_size=vocab)).run(logits, tokens, k)
    truth = logits.double().log_softmax(-1)
    chosen = truth.gather(1, tokens.long()[:, None])
    torch.testing.assert_close(found.chosen.double(), chosen[:, 0], atol=1e-5, rtol=1e-5)
    assert found.rank.tolist() == ((truth > chosen).sum(-1) + 1).tolist()
    torch.testing.assert_close(found.top.double(), truth.topk(k, dim=-1).values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(truth.gather(1, found.top_ids.long()), found.top.double(), atol=1e-5, rtol=1e-5)
    assert found.top_ids.dtype == found.rank.dtype == torch.int32


def test_the_most_that_are_found_without_a_sort() -> None:
    logits = torch.randn(1, 4100, generator=torch.Generator().manual_seed(1))
    found = token_logprobs(TokenLogprobsSpec(vocab_size=4100)).run(logits, torch.tensor([3], dtype=torch.int32), MOST)
    assert found.top_ids.tolist() == logits.topk(MOST, dim=-1).indices.tolist()


def test_equal_ones_come_by_rising_id() -> None:
    found = token_logprobs(TokenLogprobsSpec(vocab_size=9000)).run(
        torch.zeros(1, 9000), torch.tensor([5], dtype=torch.int32), 4
    )
    assert found.top_ids.tolist() == [[0, 1, 2, 3]]
    assert found.rank.tolist() == [1]
