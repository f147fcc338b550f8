"""The engine under any interleaving of submissions, aborts, failures, sleep and steps: rows and blocks always add up.

On the null platform, so that only logic runs. Beside integrity it is checked that every request gets exactly the
tokens it asked for, that ends come once, and that the engine never stops while it has work.
"""

from __future__ import annotations

from typing import Any

import pytest
from driver import Outcome, drive, request
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from null_engine import MAX_LEN, VARIANTS, null_engine

from tenon_core.engine.messages import FinishReason, GenerateRequest, split_key
from tenon_core.execution.delta import StepDelta
from tenon_platforms.errors import CapacityError, RequestError
from tenon_platforms.pools import Pool

pytestmark = [pytest.mark.unit, pytest.mark.null]


class Failing:
    """An executor some of whose steps fail when asked to."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.armed = inner, 0

    @property
    def num_compiles(self) -> int:
        return int(self.inner.num_compiles)

    def launch(self, delta: StepDelta, masks: Any = None) -> Any:
        handle = self.inner.launch(delta, masks)
        if self.armed:
            self.armed -= 1
            return _Failed(handle)
        return handle

    def shutdown(self) -> None:
        self.inner.shutdown()


class _Failed:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def result(self) -> Any:
        self.handle.discard()
        raise RuntimeError("injected")

    def discard(self) -> None:
        self.handle.discard()


class EngineMachine(RuleBasedStateMachine):
    """asked: requests by id. aborted: keys that may end early."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome = Outcome()
        self.asked: dict[int, GenerateRequest] = {}
        self.aborted: set[int] = set()
        self.failures = 0
        self.asleep: set[Pool] = set()

    @initialize(variant=st.sampled_from(sorted(VARIANTS)))
    def start(self, variant: str) -> None:
        self.engine = VARIANTS[variant]().engine
        self.executor = self.engine.executor = Failing(self.engine.executor)

    @rule(
        length=st.integers(1, 80),
        shared=st.booleans(),
        max_tokens=st.integers(1, 40),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        stops=st.booleans(),
        extras=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def submit(
        self, length: int, shared: bool, max_tokens: int, n: int, stops: bool, extras: bool, priority: int
    ) -> None:
        identity = len(self.asked) + 1
        prompt = [(7 if shared else identity) * place % 49 + 1 for place in range(length)]
        fields: dict[str, Any] = {"logprobs": 1, "prompt_logprobs": 0, "presence_penalty": 1.0} if extras else {}
        one = request(
            identity,
            prompt,
            n=n,
            max_tokens=max_tokens,
            stop_token_ids=(0,) if stops else (),
            min_tokens=min(3, max_tokens) if stops else 0,
            priority=priority,
            **fields,
        )
        try:
            self.engine.submit(one)
        except RequestError:  # more than this variant's pool or rows can ever hold
            facts = self.engine.facts
            assert length + max_tokens > facts.max_resident_tokens or n > 1
            return
        self.asked[identity] = one

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), one_sample=st.booleans())
    def abort(self, data: st.DataObject, one_sample: bool) -> None:
        identity = data.draw(st.sampled_from(sorted(self.asked)))
        count = self.asked[identity].params.n
        samples = [data.draw(st.integers(0, count - 1))] if one_sample else list(range(count))
        keys = [identity << 16 | sample for sample in samples]
        self.aborted.update(keys)
        if one_sample:
            self.engine.abort(keys=keys)
        else:
            self.engine.abort([identity])

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.engine.has_work():
                self.outcome.take(self.engine.step())

    @rule(pools=st.sets(st.sampled_from(tuple(Pool)), min_size=1))
    def sleep(self, pools: set[Pool]) -> None:
        self.engine.sleep(pools)
        self.asleep |= pools
        assert set(self.engine.sleeping.asleep) == self.asleep
        if Pool.KV_CACHE in pools:
            assert self.engine.memory.allocator.num_free == self.engine.memory.allocator.num_blocks - 1
        while self.engine.has_work():  # what had landed is told, and no more
            self.outcome.take(self.engine.step())
        assert not any(self.engine.table.in_flight)

    @precondition(lambda self: self.asleep)
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        pools = data.draw(st.sets(st.sampled_from(sorted(self.asleep)), min_size=1))
        self.engine.wake(pools)
        self.asleep -= pools

    @rule()
    def reset_prefix_cache(self) -> None:
        self.engine.reset_prefix_cache()

    @rule(count=st.integers(1, 2))
    def fail(self, count: int) -> None:
        self.executor.armed = count
        self.failures += count

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()
            self.engine.stats()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.executor.armed = 0
        self.engine.wake(tuple(Pool))
        drive(self.engine, outcome=self.outcome)
        expected = {identity << 16 | sample for identity, one in self.asked.items() for sample in range(one.params.n)}
        assert set(self.outcome.finished) == expected
        for key in expected:
            self.check_end(key)
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        everything = request(0, [1], n=self.engine.facts.max_num_seqs, max_tokens=2)  # needs every row there is
        assert len(drive(self.engine, [everything]).finished) == self.engine.facts.max_num_seqs

    def check_end(self, key: int) -> None:
        params = self.asked[split_key(key)[0]].params
        end, tokens = self.outcome.finished[key], self.outcome.tokens.get(key, [])
        reason = FinishReason(end.reason)
        assert set(tokens) <= {0}
        if reason is FinishReason.ABORT:
            assert key in self.aborted
        elif reason is FinishReason.ERROR:
            assert self.failures and "injected" in end.message
        elif reason is FinishReason.STOP:
            assert params.stop_token_ids and len(tokens) == max(params.min_tokens, 1)
        else:
            assert len(tokens) == params.max_tokens
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and params.logprobs is not None:
            assert len(self.outcome.logprobs[key]) == len(tokens)


EngineMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestEngine = EngineMachine.TestCase


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_many_requests_of_all_sizes_end(variant: str) -> None:
    engine = VARIANTS[variant]().engine
    room = min(engine.facts.max_resident_tokens, MAX_LEN - 1)
    most = min(room - 20, engine.facts.max_prompt_len or room)
    requests = [request(i, [i % 40 + 1] * (1 + i * 7 % most), max_tokens=1 + i * 5 % 20) for i in range(40)]
    outcome = drive(engine, requests)
    assert all(len(outcome.of(i)) == 1 + i * 5 % 20 for i in range(40))


def test_one_failing_step_ends_nobody_and_is_forgotten() -> None:
    engine = null_engine(num_blocks=100, max_num_seqs=5).engine
    executor = engine.executor = Failing(engine.executor)
    requests = [request(i, [1, 2, 3], max_tokens=40, n=2 if i == 0 else 1) for i in range(3)]
    ended_first: list[int] = []

    def on_step(step: int, outcome: Outcome) -> None:
        executor.armed = int(step == 6)
        if step == 30:  # every sequence has run alone by now: newcomers are admitted again
            engine.submit(request(9, [1], max_tokens=2))
        if outcome.finished and not ended_first:
            ended_first.extend(outcome.finished)

    outcome = drive(engine, requests, on_step=on_step)
    assert {end.reason for end in outcome.finished.values()} == {FinishReason.LENGTH}
    assert all(len(outcome.of(i)) == 40 for i in range(3)) and len(outcome.of(0, 1)) == 40
    assert ended_first == [9 << 16]


@pytest.mark.parametrize("is_async", [False, True])
def test_prompts_do_not_starve_behind_decodes_that_may_not_mix(is_async: bool) -> None:
    engine = null_engine(num_blocks=100, limits={"mix": False}, is_async=is_async).engine
    first_tokens: list[int] = []

    def on_step(step: int, outcome: Outcome) -> None:
        if step in (5, 9):
            engine.submit(request(step, [1, 2, 3], max_tokens=3))
        if outcome.tokens.get(9 << 16) and not first_tokens:
            first_tokens.append(len(outcome.of(0)))

    drive(engine, [request(0, [1, 2], max_tokens=60)], on_step=on_step)
    assert first_tokens[0] < 20


def test_decodes_do_not_starve_behind_a_long_prompt() -> None:
    engine = null_engine(num_blocks=100, limits={"mix": False, "fixed_chunk": 4}).engine
    generated: list[int] = []

    def on_step(step: int, outcome: Outcome) -> None:
        if step == 3:
            engine.submit(request(1, [2] * 80, max_tokens=1))  # twenty chunks
        if not outcome.tokens.get(1 << 16):
            generated.append(len(outcome.of(0)))

    drive(engine, [request(0, [1, 2], max_tokens=60)], on_step=on_step)
    assert generated[-1] >= 15


@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("victims", [(1,), (0,), (2, 1), (0, 3, 1, 2)])
def test_samples_aborted_before_birth_give_their_rows_back(at: int, victims: tuple[int, ...]) -> None:
    engine = null_engine(num_blocks=100, max_num_batched_tokens=8).engine

    def on_step(step: int, outcome: Outcome) -> None:
        if step == at:
            engine.abort(keys=[1 << 16 | sample for sample in victims])

    outcome = drive(engine, [request(1, [3] * 30, n=4, max_tokens=4)], on_step=on_step)
    for sample in range(4):
        assert outcome.reason(1, sample) is (FinishReason.ABORT if sample in victims else FinishReason.LENGTH)
    assert len(drive(engine, [request(2, [3] * 30, n=4, max_tokens=4)]).finished) == 4


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_prompt_computed_again_brings_its_unborn_samples_along(at: int) -> None:
    engine = null_engine(num_blocks=100, max_num_batched_tokens=8, max_num_seqs=5).engine
    executor = engine.executor = Failing(engine.executor)

    def on_step(step: int, outcome: Outcome) -> None:
        executor.armed = int(step == at)

    for identity in (1, 2, 3):
        beside = request(10 + identity, [1], max_tokens=8)  # a step of one sequence alone would be its end
        outcome = drive(engine, [beside, request(identity, [3] * 30, n=4, max_tokens=4)], on_step=on_step)
        assert [len(outcome.of(identity, sample)) for sample in range(4)] == [4] * 4


def test_a_full_queue_refuses_with_a_remedy() -> None:
    engine = null_engine(num_blocks=40, max_waiting=3).engine
    for i in range(3):
        engine.submit(request(i, [1] * 8))
    with pytest.raises(CapacityError, match=r"3 requests are waiting, the most that --max-waiting allows"):
        engine.submit(request(9, [1]))
    with pytest.raises(CapacityError, match="request id 1 is already in use"):
        null = null_engine(num_blocks=40).engine
        null.submit(request(1, [1]))
        null.submit(request(1, [1]))
    drive(engine)
    drive(engine, [request(9, [1])])


def test_lower_priority_numbers_run_first() -> None:
    engine = null_engine(num_blocks=40, max_num_seqs=1).engine
    order: list[int] = []

    def watch(step: int, outcome: Outcome) -> None:
        order.extend(key >> 16 for key in outcome.finished if key >> 16 not in order)

    requests = [request(i, [1, 2], max_tokens=3, priority=priority) for i, priority in enumerate((5, 0, -2, 0))]
    watch(0, drive(engine, requests, on_step=watch))
    assert order == [2, 1, 3, 0]


def test_compiles_after_ready_are_counted() -> None:
    assembled = null_engine(num_blocks=40)
    assembled.engine.mark_ready()
    assert assembled.engine.stats().num_compiles_after_ready == 0


def test_blocks_are_copied_by_contiguous_lists() -> None:
    """Kernels read them by address: a strided view of pairs would be read as pairs."""
    engine = VARIANTS[sorted(VARIANTS)[0]]().engine
    backend = engine.executor.runner.model.groups[0].backend
    seen: list[tuple[Any, Any]] = []
    inner = backend.copy_blocks

    def watched(caches: list[Any], source: Any, target: Any) -> None:
        seen.append((source, target))
        inner(caches, source, target)

    backend.copy_blocks = watched
    engine.submit(request(1, [3] * 7, n=3, max_tokens=4))
    while engine.has_work():
        engine.step()
    assert seen
    for source, target in seen:
        assert source.is_contiguous() and target.is_contiguous() and source.shape == target.shape
