"""Captured steps over the attention of the CUDA platform, interpreted, under an engine: recorded calls are the graphs.

What a graph would hold, grids, constants and the addresses of a step's inputs, is what the recorded call runs again: a
launch that depends on a batch and not on its key gives other tokens, or writes where it may not. Attention and what is
done in the rows' memory are tenon-triton's; all else, which knows no rows, is the contract's reference here: in minutes
it would show no more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from driver import build, drive, model_source, prompts_of, request
from interpreted_cuda import InterpretedCUDA
from tiny_models import make_tiny

from tenon_core.engine.assembly import Assembled

pytestmark = pytest.mark.e2e
FULL = pytest.mark.full
LENGTHS = (5, 21, 9, 14)
NUM_BLOCKS = 24


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    return lambda name: make_tiny(name, tmp_path_factory.mktemp("tiny"))


def made(tiny: Any, platform: InterpretedCUDA, **flags: Any) -> Assembled:
    flags = {"max_num_seqs": 3, "num_blocks": NUM_BLOCKS, "block_size": 16, **flags}
    return build(model_source(Path(tiny.path), tiny.config), platform, **flags)


def run(assembled: Assembled, **params: Any) -> tuple[list[list[int]], list[int]]:
    """Tokens of requests that come one after the other, and the blocks that something was written into.

    A prompt begins with the one before it, which may be cached: contexts, chunks, and decodes in the same step. Where
    nothing was written the cache is NaN.
    """
    engine, caches = assembled.engine, assembled.model.caches
    for cache in caches:
        cache[1:] = float("nan")
    words = prompts_of(LENGTHS)
    asked = [request(i, [*words[max(i - 1, 0)], *word], max_tokens=4, **params) for i, word in enumerate(words)]

    def arrive(step: int, outcome: Any) -> None:
        if step % 2 == 1 and step // 2 + 1 < len(asked):
            engine.submit(asked[step // 2 + 1])

    outcome = drive(engine, asked[:1], on_step=arrive)
    written = torch.stack([cache.isnan().logical_not().flatten(1).any(1) for cache in caches]).any(0)
    engine.shutdown()
    return [outcome.of(i) for i in range(len(asked))], written.nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("model", "flags", "params"),
    [
        ("llama", {}, {}),
        ("llama", {"max_num_batched_tokens": 13}, {"temperature": 0.9}),
        pytest.param("qwen2-window", {}, {"top_k": 20, "repetition_penalty": 1.2, "temperature": 0.9}, marks=FULL),
        pytest.param("llama", {"batch_invariant": True}, {}, marks=FULL),
    ],
    ids=["plain", "chunks, noise", "window, penalties", "batch invariant"],
)
def test_captured_steps_give_the_tokens_of_eager_ones(
    tiny: Callable[[str], Any], model: str, flags: dict[str, Any], params: dict[str, Any]
) -> None:
    checkpoint = tiny(model)
    expected, blocks = run(made(checkpoint, InterpretedCUDA(), enforce_eager=True, **flags), **params)
    platform = InterpretedCUDA()
    captured = made(checkpoint, platform, **flags)
    tokens, written = run(captured, **params)
    assert tokens == expected
    assert [block for block in written if block] == [block for block in blocks if block], "padding wrote into a block"
    step: Any = captured.runner.step
    prompts = [key for key in platform.recorder.keys if not key.is_decode]
    assert {key.rows for key in prompts} == {1, 3} or "max_num_batched_tokens" in flags
    assert step.num_captures == len(platform.recorder.keys) == len(set(platform.recorder.keys))
    assert any(not key.is_decode for key in platform.recorder.replayed), "some key with prompts came again"


def test_a_key_recorded_with_decodes_serves_fewer(tiny: Callable[[str], Any]) -> None:
    """Two decodes beside a prompt are recorded, then one beside another, then none beside two: the same key."""
    words = prompts_of((40, 41, 10, 9, 5, 6))
    lasts = (5, 16, 2, 2, 2, 2)  # tokens of each: two run while the third comes, one while the fourth does
    after = {1: 2, 8: 3}  # step -> who comes then

    def tokens_of(platform: InterpretedCUDA, **flags: Any) -> list[list[int]]:
        assembled = made(tiny("llama"), platform, **flags)
        asked = [request(i, word, max_tokens=last) for i, (word, last) in enumerate(zip(words, lasts, strict=True))]

        def arrive(step: int, outcome: Any) -> None:
            if step in after:
                assembled.engine.submit(asked[after[step]])

        outcome = drive(assembled.engine, asked[:2], on_step=arrive)
        last = drive(assembled.engine, asked[4:])
        assembled.engine.shutdown()
        return [outcome.of(i) for i in range(4)] + [last.of(4), last.of(5)]

    platform = InterpretedCUDA()
    assert tokens_of(platform) == tokens_of(InterpretedCUDA(), enforce_eager=True)
    small = [(key.tokens, key.rows) for key in platform.recorder.replayed if not key.is_decode]
    assert small == [(16, 3), (16, 3)], "recorded beside two decodes, replayed beside one and beside none"
