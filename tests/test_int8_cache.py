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


def tokens_of(assembled: Assembled, rounds: int = 1) -> list[list[int]]:
    """Greedy tokens of every prompt; further rounds find them in the prefix cache."""
    prompts = prompts_of(LENGTHS)
    for _ in range(rounds):
        outcome = drive(assembled.engine, [request(i, prompt, max_tokens=24) for i, prompt in enumerate(prompts)])
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
        {"num_blocks": 12, "block_size": 16},  # rows are preempted and begin anew
        {"platform_options": {"threads": 1}},
    ],
)
def test_tokens_do_not_depend_on_how_steps_are_cut(flat: dict[str, Any], build_tiny: Build) -> None:
    wanted = tokens_of(build_tiny("llama", "cpu", kv_dtype=DType.INT8), rounds=2)
    assembled = build_tiny("llama", "cpu", kv_dtype=DType.INT8, **flat)
    assert tokens_of(assembled, rounds=2) == wanted
    assert ("num_blocks" in flat) == (assembled.engine.stats().num_preemptions > 0)
