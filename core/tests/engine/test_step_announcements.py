"""Before the host may wait for the device, the engine says how many tokens it waits for."""

from __future__ import annotations

import pytest
from driver import drive, request
from null_engine import null_engine

pytestmark = pytest.mark.null


def announced(*, is_async: bool, prompt: int, max_tokens: int) -> list[int]:
    engine = null_engine(num_blocks=40, is_async=is_async, max_num_batched_tokens=16).engine
    counts: list[int] = []
    engine.on_step = counts.append
    drive(engine, [request(1, [1] * prompt, max_tokens=max_tokens)])
    return counts


def test_a_synchronous_step_is_announced_alone() -> None:
    assert announced(is_async=False, prompt=40, max_tokens=3) == [16, 16, 8, 1, 1]


def test_with_overlap_the_steps_in_flight_count_too() -> None:
    assert announced(is_async=True, prompt=40, max_tokens=3) == [16, 32, 24, 9, 2, 1]
