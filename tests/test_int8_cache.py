"""A KV cache of int8 in an engine: native kernels' tokens are the reference's, however a step is cut or replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driver import drive, prompts_of, request

from tenon_core.engine.assembly import Assembled
from tenon_platforms.dtypes import DType

native = pytest.importorskip("tenon_cpu.native")
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(native.library() is None, reason="no native library")]
Build = Callable[..., Assembled]
LENGTHS = (3, 17, 40, 70, 129)


def tokens_of(
    assembled: Assembled, rounds: int = 1, lengths: tuple[int, ...] = LENGTHS, count: int = 24
) -> list[list[int]]:
    """Greedy tokens of every prompt; further rounds find them in the prefix cache."""
    prompts = prompts_of(lengths)
    for _ in range(rounds):
        outcome = drive(assembled.engine, [request(i, prompt, max_tokens=count) for i, prompt in enumerate(prompts)])
    return [list(outcome.of(i)) for i in range(len(prompts))]


@pytest.mark.parametrize("model", ["llama", "qwen3", "mistral-window"])
def test_tokens_are_the_references(model: str, build_tiny: Build) -> None:
    wanted = tokens_of(build_tiny(model, "reference", kv_dtype=DType.INT8))
    assert tokens_of(build_tiny(model, "cpu", kv_dtype=DType.INT8)) == wanted
    assert tokens_of(build_tiny(model, "cpu")) != wanted, "a cache that rounds nothing proves nothing"


@pytest.mark.parametrize(
    "flat",
    [
        {"enforce_eager": True},
        {"max_num_batched_tokens": 16},
        {"enable_prefix_caching": False},
        {"platform_options": {"threads": 1}},
    ],
)
def test_tokens_do_not_depend_on_how_steps_are_cut(flat: dict[str, Any], build_tiny: Build) -> None:
    wanted = tokens_of(build_tiny("llama", "cpu", kv_dtype=DType.INT8), rounds=2)
    assert tokens_of(build_tiny("llama", "cpu", kv_dtype=DType.INT8, **flat), rounds=2) == wanted


def test_a_row_that_was_preempted_begins_anew(build_tiny: Build) -> None:
    lengths, size = (13, 14, 15), {"kv_dtype": DType.INT8, "block_size": 16}
    wanted = tokens_of(build_tiny("llama", "cpu", **size), lengths=lengths, count=40)
    crowded = build_tiny("llama", "cpu", num_blocks=8, **size)
    assert tokens_of(crowded, lengths=lengths, count=40) == wanted
    assert crowded.engine.stats().num_preemptions > 0
