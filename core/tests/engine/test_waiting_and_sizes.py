"""What the engine tells for metrics: how long a request waited for its first row, and steps by their tokens."""

from __future__ import annotations

import time

import pytest
from driver import request
from null_engine import null_engine

from tenon_core.observability.metric_names import TOKENS_OF_A_STEP

pytestmark = pytest.mark.null


def test_the_time_in_the_queue_is_told_with_the_prompt() -> None:
    """One row: the second request waits until the first one, whose steps the clock is let run between, has ended."""
    engine = null_engine(num_blocks=40, is_async=False, max_num_seqs=1).engine
    began = time.monotonic()
    for identity in (1, 2):
        engine.submit(request(identity, [1] * 5, max_tokens=4))
    waited: dict[int, float] = {}
    while engine.has_work():
        update = engine.step()
        time.sleep(0.02)
        for info in update.prompts if update is not None else ():
            waited[info.key >> 16] = info.queued_seconds
    assert set(waited) == {1, 2}
    assert 0 < waited[1] < 0.06 < waited[2] < time.monotonic() - began  # three steps of 20 ms come in between


def test_a_preempted_request_has_waited_once() -> None:
    engine = null_engine(num_blocks=13, is_async=False, max_num_seqs=2).engine
    for identity in (1, 2):
        engine.submit(request(identity, [1] * 8, max_tokens=20))
    infos = []
    while engine.has_work():
        update = engine.step()
        infos += [] if update is None else update.prompts
    assert engine.scheduler.num_preemptions > 0, "nobody was preempted: this test shows nothing"
    assert len(infos) == 2 and all(info.queued_seconds < 5 for info in infos)


def test_steps_are_counted_by_their_tokens() -> None:
    engine = null_engine(num_blocks=40, is_async=False, max_num_batched_tokens=16).engine
    engine.submit(request(1, [1] * 40, max_tokens=3))
    while engine.has_work():
        engine.step()
    stats = engine.stats()
    sizes = dict(zip((*TOKENS_OF_A_STEP, None), stats.num_steps_by_size, strict=True))
    assert {size: count for size, count in sizes.items() if count} == {16: 2, 8: 1, 1: 2}  # 16, 16, 8, 1, 1
    assert stats.num_scheduled_tokens == 42 and sum(stats.num_steps_by_size) == stats.num_steps == 5
