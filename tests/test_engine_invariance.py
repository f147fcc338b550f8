"""What may not change tokens: overlap, chunking, the prefix cache, preemption, forks, and who else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from driver import Outcome, drive, prompts_of, request
from equality import Reference, assert_greedy_equal

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import FinishReason, sequence_key
from tenon_core.execution.delta import StepDelta, decode_delta, encode_delta
from tenon_core.models.model import Model, StepContext
from tenon_platforms.capabilities import Determinism

pytestmark = pytest.mark.e2e
Build = Callable[..., Assembled]
References = Callable[[str], Reference]
MODELS = ("llama", "gemma3")  # one layer group; several with sliding windows
LENGTHS = (1, 5, 17, 33, 48, 64, 100, 150)
VARIANTS: dict[str, dict[str, Any]] = {
    "no overlap": {"overlap": False},
    "chunks of 16": {"max_num_batched_tokens": 16},
    "no prefix cache": {"enable_prefix_caching": False},
    "no chunking": {"enable_chunked_prefill": False},
    "three rows": {"max_num_seqs": 3},
    "eager": {"enforce_eager": True},
}


def assert_all_equal(outcome: Outcome, reference: Reference, prompts: list[list[int]], label: str) -> None:
    for i, prompt in enumerate(prompts):
        assert outcome.reason(i) is FinishReason.LENGTH
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{label}, prompt {i}")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", MODELS)
def test_same_tokens(model: str, variant: str, platform_name: str, build_tiny: Build, reference_of: References) -> None:
    prompts = prompts_of(LENGTHS)
    engine = build_tiny(model, platform_name, **VARIANTS[variant]).engine
    outcome = drive(engine, [request(i, prompt) for i, prompt in enumerate(prompts)])
    assert_all_equal(outcome, reference_of(model), prompts, f"{model}, {variant}")


@pytest.mark.parametrize("model", MODELS)
def test_the_last_layer_computes_the_tokens_that_are_read(
    model: str, platform_name: str, build_tiny: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, seen = Model.forward, []

    def both(self: Model, token_ids: Any, context: StepContext) -> Any:
        found, wanted = forward(self, token_ids, context), context.wanted
        if wanted is not None:
            whole = forward(self, token_ids, replace(context, wanted=None)).index_select(0, wanted)
            seen.append((token_ids.shape[0], found, whole))
        return found

    monkeypatch.setattr(Model, "forward", both)
    engine = build_tiny(model, platform_name, enforce_eager=True).engine
    drive(engine, [request(i, prompt, max_tokens=3) for i, prompt in enumerate(prompts_of(LENGTHS))])
    assert seen
    for num_tokens, found, whole in seen:
        assert found.shape[0] < num_tokens
        np.testing.assert_allclose(found.cpu().numpy(), whole.cpu().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_preempted_sequences_give_the_same_tokens(
    model: str, platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    prompts = prompts_of((9, 10, 11, 12, 13, 14, 15, 16))
    size = build_tiny(model, platform_name).block_size
    groups = 4 if model == "gemma3" else 1
    engine = build_tiny(model, platform_name, num_blocks=len(prompts) * -(-100 // size) * groups // 2 + 1).engine
    outcome = drive(engine, [request(i, prompt, max_tokens=90) for i, prompt in enumerate(prompts)])
    assert engine.stats().num_preemptions > 0
    assert_all_equal(outcome, reference_of(model), prompts, model)


@pytest.mark.parametrize("model", MODELS)
def test_prefix_cache_hits_give_the_same_tokens(
    model: str, platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    shared, *tails = prompts_of((96, 1, 20, 50))
    prompts = [shared + tail for tail in tails]
    assembled = build_tiny(model, platform_name)
    engine, size = assembled.engine, assembled.block_size
    cold = drive(engine, [request(0, prompts[0])])
    warm = drive(engine, [request(i, prompt) for i, prompt in enumerate(prompts)])
    assert cold.prompts[sequence_key(0, 0)].num_cached_tokens == 0
    for i in range(len(prompts)):
        assert warm.prompts[sequence_key(i, 0)].num_cached_tokens == 96 // size * size > 0
    assert engine.stats().num_prefix_hits > 0
    assert_all_equal(warm, reference_of(model), prompts, model)
    other = drive(engine, [request(9, prompts[0], salt="another tenant")])
    assert other.prompts[sequence_key(9, 0)].num_cached_tokens == 0
    engine.reset_prefix_cache()
    forgotten = drive(engine, [request(10, prompts[0])])
    assert forgotten.prompts[sequence_key(10, 0)].num_cached_tokens == 0


def test_outputs_are_cached_too(platform_name: str, build_tiny: Build, reference_of: References) -> None:
    (prompt,) = prompts_of((20,))
    assembled = build_tiny("llama", platform_name)
    engine, size = assembled.engine, assembled.block_size
    first = drive(engine, [request(0, prompt, max_tokens=80)])
    turn = [*prompt, *first.of(0), 7]
    second = drive(engine, [request(1, turn)])
    assert second.prompts[sequence_key(1, 0)].num_cached_tokens == 99 // size * size > 20  # the last has no KV yet
    assert_greedy_equal(second.of(1), reference_of("llama"), turn)


@pytest.mark.parametrize("length", [1, 37, 48])
@pytest.mark.parametrize("model", MODELS)
def test_forks_equal_single_samples(
    model: str, length: int, platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    (prompt,) = prompts_of((length,), seed=length)
    engine = build_tiny(model, platform_name).engine
    outcome = drive(engine, [request(0, prompt, n=4), request(1, prompt, n=2)])
    assert len(outcome.finished) == 6
    for request_id, count in ((0, 4), (1, 2)):
        for sample in range(count):
            assert_greedy_equal(outcome.of(request_id, sample), reference_of(model), prompt, label=f"sample {sample}")


def test_forks_survive_preemption_and_chunks(platform_name: str, build_tiny: Build, reference_of: References) -> None:
    prompts = prompts_of((40, 21))
    size = build_tiny("llama", platform_name).block_size
    blocks = 4 * -(-180 // size)
    engine = build_tiny("llama", platform_name, num_blocks=blocks, max_num_batched_tokens=16).engine
    outcome = drive(engine, [request(i, prompt, n=3, max_tokens=140) for i, prompt in enumerate(prompts)])
    assert engine.stats().num_preemptions > 0
    for i, prompt in enumerate(prompts):
        for sample in range(3):
            assert_greedy_equal(outcome.of(i, sample), reference_of("llama"), prompt, label=f"{i}, sample {sample}")


def test_aborts_leave_the_others_alone(platform_name: str, build_tiny: Build, reference_of: References) -> None:
    prompts = prompts_of((5, 60, 130, 40, 8, 90))
    engine = build_tiny("gemma3", platform_name, max_num_batched_tokens=32).engine

    def abort(step: int, outcome: Outcome) -> None:
        if step == 0:
            engine.abort([5])  # still waiting
        if step == 2:
            engine.abort([2, 404])  # in the middle of its prompt
        if step == 12:
            engine.abort([1], keys=[sequence_key(3, 1)])  # decoding; one sample of three

    requests = [request(i, prompt, n=3 if i == 3 else 1) for i, prompt in enumerate(prompts)]
    outcome = drive(engine, requests, on_step=abort)
    assert {key for key, end in outcome.finished.items() if end.reason == FinishReason.ABORT} == {
        sequence_key(1, 0), sequence_key(2, 0), sequence_key(3, 1), sequence_key(5, 0)
    }  # fmt: skip
    for i, sample in ((0, 0), (3, 0), (3, 2), (4, 0)):
        assert len(outcome.of(i, sample)) == 32
        assert_greedy_equal(outcome.of(i, sample), reference_of("gemma3"), prompts[i])
    for i in (1, 2, 5):  # what they got before their end is right too
        if outcome.of(i):
            assert_greedy_equal(outcome.of(i), reference_of("gemma3"), prompts[i])


@pytest.mark.parametrize("victims", [[(0, None)], [(0, 0)], [(0, 1), (0, 0)], [(0, 0), (0, 1), (0, 2)]])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_aborted_samples_of_one_request(
    at: int, victims: list[tuple[int, int | None]], platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    long, short = prompts_of((70, 6))
    engine = build_tiny("llama", platform_name, max_num_batched_tokens=24, max_num_seqs=6).engine

    def abort(step: int, outcome: Outcome) -> None:
        if step == at:
            engine.abort(
                [one for one, sample in victims if sample is None],
                keys=[sequence_key(one, sample) for one, sample in victims if sample is not None],
            )

    outcome = drive(engine, [request(0, long, n=3), request(1, short)], on_step=abort)
    assert len(outcome.finished) == 4
    gone = {sample for _, sample in victims}
    for sample in range(3):
        if None in gone or sample in gone:
            assert outcome.reason(0, sample) is FinishReason.ABORT
        else:
            assert outcome.reason(0, sample) is FinishReason.LENGTH
            assert_greedy_equal(outcome.of(0, sample), reference_of("llama"), long)
    assert_greedy_equal(outcome.of(1), reference_of("llama"), short)


@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen3_moe"])
def test_batch_invariance_is_bitwise(model: str, platform_name: str, build_tiny: Build) -> None:
    if build_tiny(model, platform_name).capabilities.determinism is not Determinism.BATCH:
        pytest.skip(f"{platform_name} does not claim it")
    prompts = prompts_of((3, 20, 50, 90))
    alone: list[list[int]] = []
    for i, prompt in enumerate(prompts):
        engine = build_tiny(model, platform_name, batch_invariant=True).engine
        alone.append(drive(engine, [request(i, prompt, temperature=1.3, seed=i + 5)]).of(i))
    engine = build_tiny(model, platform_name, batch_invariant=True, max_num_batched_tokens=24).engine
    requests = [request(i, prompt, temperature=1.3, seed=i + 5) for i, prompt in enumerate(prompts)]
    others = [request(10 + i, prompt, n=2, temperature=0.7) for i, prompt in enumerate(prompts_of((30, 7), seed=3))]
    together = drive(engine, [others[0], *requests, others[1]])
    for i in range(len(prompts)):
        assert together.of(i) == alone[i]
    first = drive(engine, [request(0, prompts[0], n=3, temperature=1.3, seed=5)])
    assert first.of(0, 0) == alone[0]
    assert len({tuple(first.of(0, sample)) for sample in range(3)}) == 3


class Serialised:
    """An executor whose runner only ever sees deltas that went through bytes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.num_bytes = 0

    @property
    def num_compiles(self) -> int:
        return int(self.inner.num_compiles)

    def launch(self, delta: StepDelta, masks: Any = None) -> Any:
        data = encode_delta(delta)
        self.num_bytes += len(data)
        return self.inner.launch(decode_delta(data), masks)

    def shutdown(self) -> None:
        self.inner.shutdown()


def test_deltas_survive_serialisation(platform_name: str, build_tiny: Build, reference_of: References) -> None:
    prompts = prompts_of((9, 40, 75, 12))
    engine = build_tiny("gemma3", platform_name, max_num_batched_tokens=32).engine
    engine.executor = wrapped = Serialised(engine.executor)
    plain = [request(i, prompt, n=2 if i == 1 else 1) for i, prompt in enumerate(prompts)]
    fancy = request(
        20, prompts[0], temperature=1.0, top_k=5, repetition_penalty=1.2, logit_bias={3: 2.0}, min_tokens=4, logprobs=2,
        prompt_logprobs=1,
    )  # fmt: skip
    outcome = drive(engine, [*plain, fancy])
    assert wrapped.num_bytes > 0
    assert_all_equal(outcome, reference_of("gemma3"), prompts, "through bytes")
    assert len(outcome.of(20)) == 32


def test_windows_let_blocks_go(platform_name: str, build_tiny: Build, reference_of: References) -> None:
    (prompt,) = prompts_of((150,))
    assembled = build_tiny("gemma3", platform_name)
    engine, memory = assembled.engine, assembled.engine.memory
    held: list[tuple[int, int]] = []

    def watch(step: int, outcome: Outcome) -> None:
        length = len(prompt) + len(outcome.of(0))
        held.append((engine.stats().num_blocks - engine.stats().num_free_blocks, memory.blocks_for(length + 2)))

    outcome = drive(engine, [request(0, prompt, max_tokens=120)], on_step=watch)
    assert_greedy_equal(outcome.of(0), reference_of("gemma3"), prompt)
    steady = held[len(held) // 4 :]
    assert all(used <= allowed for used, allowed in steady), steady[:5]
    whole = -(-270 // assembled.block_size) * memory.num_groups
    assert max(used for used, _ in steady) < whole * 0.75


class Poisoned:
    """An executor that fails every step in which a sequence takes part, from its n-th step on."""

    def __init__(self, inner: Any, table: Any, key: int, after: int) -> None:
        self.inner, self.table, self.key, self.after = inner, table, key, after
        self.num_seen = 0

    @property
    def num_compiles(self) -> int:
        return int(self.inner.num_compiles)

    def launch(self, delta: StepDelta, masks: Any = None) -> Any:
        handle = self.inner.launch(delta, masks)
        self.num_seen += self.key in self.table.keys[delta.rows]
        if self.key in self.table.keys[delta.rows] and self.num_seen > self.after:
            return _Failing(handle)
        return handle

    def shutdown(self) -> None:
        self.inner.shutdown()


class _Failing:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def result(self) -> Any:
        self.handle.discard()
        raise ValueError("injected")

    def discard(self) -> None:
        self.handle.discard()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("after", [0, 1, 7])
def test_one_poisoned_request_harms_no_other(
    after: int, platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    prompts = prompts_of((12, 40, 5, 64))
    engine = build_tiny("llama", platform_name, max_num_batched_tokens=32).engine
    engine.executor = Poisoned(engine.executor, engine.table, sequence_key(1, 0), after)
    outcome = drive(engine, [request(i, prompt, n=2 if i == 3 else 1) for i, prompt in enumerate(prompts)])
    assert outcome.reason(1) is FinishReason.ERROR
    assert "injected" in outcome.finished[sequence_key(1, 0)].message
    for i, sample in ((0, 0), (2, 0), (3, 0), (3, 1)):
        assert outcome.reason(i, sample) is FinishReason.LENGTH
        assert_greedy_equal(outcome.of(i, sample), reference_of("llama"), prompts[i], label=f"beside a failure, {i}")
    again = drive(engine, [request(50, prompts[0])])
    assert_greedy_equal(again.of(50), reference_of("llama"), prompts[0])
