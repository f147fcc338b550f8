"""The engine on the simulated device: the same answers as anywhere, nothing compiled late, and races that show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from driver import Outcome, build, drive, model_source, prompts_of, request
from equality import Reference, assert_greedy_equal, hf_reference
from tiny_models import TinyModel, make_tiny

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import FinishReason
from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.device import Device
from tenon_platforms.errors import ConfigError, DeviceError, TenonError
from tenon_sim.platform import SimPlatform

pytestmark = pytest.mark.e2e
LENGTHS = (1, 5, 24, 25, 60, 130)
NEW_TOKENS = 20
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-overlap": {"overlap": False},
    "small-chunks": {"max_num_batched_tokens": 16},
    "no-prefix-cache": {"enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[TinyModel, Reference]]:
    """A tiny checkpoint and its Transformers reference."""
    folder: Path = tmp_path_factory.mktemp("tiny")

    @cache
    def make(name: str) -> tuple[TinyModel, Reference]:
        model = make_tiny(name, folder)
        return model, hf_reference(model.model)

    return make


def engine_on(platform: Any, tiny_model: TinyModel, **flat: Any) -> Assembled:
    """An engine that is ready: every eager key prepared."""
    source = model_source(tiny_model.path, tiny_model.config)
    assembled = build(source, platform, **{"max_model_len": 192, "max_num_seqs": 4, **flat})
    for key in assembled.policy.eager_keys():
        assembled.runner.prepare(key)
    assembled.engine.mark_ready()
    return assembled


def finish(assembled: Assembled, requests: Any, **options: Any) -> Outcome:
    """Drive the requests to their end; nothing may compile on the way."""
    outcome = drive(assembled.engine, requests, **options)
    assert assembled.engine.stats().num_compiles_after_ready == 0
    assembled.engine.shutdown()
    return outcome


@pytest.mark.parametrize(
    ("character", "variant"),
    [
        pytest.param(character, variant, marks=() if character == "static" or variant == "plain" else pytest.mark.full)
        for character in ("static", "dynamic", "minimal")
        for variant in VARIANTS
    ],
)
def test_greedy_tokens_equal_transformers(tiny: Any, character: str, variant: str) -> None:
    model, reference = tiny("llama")
    prompts = prompts_of(LENGTHS)
    assembled = engine_on(SimPlatform({"character": character}), model, **VARIANTS[variant])
    outcome = finish(assembled, [request(i, p, max_tokens=NEW_TOKENS) for i, p in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert len(outcome.of(i)) == NEW_TOKENS
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{character}, {variant}, prompt {i}")


@pytest.mark.parametrize("character", ["static", "dynamic"])
def test_preempted_sequences_go_on_as_they_began(tiny: Any, character: str) -> None:
    model, reference = tiny("llama")
    prompts = prompts_of((20, 24, 25, 40), seed=4)
    assembled = engine_on(SimPlatform({"character": character}), model, num_blocks=11)
    outcome = finish(assembled, [request(i, p, max_tokens=70) for i, p in enumerate(prompts)])
    assert assembled.engine.stats().num_preemptions > 0, "the pool was not tiny enough to preempt"
    for i, prompt in enumerate(prompts):
        assert len(outcome.of(i)) == 70
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{character}, prompt {i}")


@pytest.mark.parametrize("name", ["gemma3", "qwen3_moe"])
@pytest.mark.parametrize("character", ["static", "dynamic"])
def test_windows_and_experts(tiny: Any, character: str, name: str) -> None:
    model, reference = tiny(name)
    prompts = prompts_of((3, 30, 90))
    assembled = engine_on(SimPlatform({"character": character}), model, max_num_seqs=3)
    outcome = finish(assembled, [request(i, p, max_tokens=NEW_TOKENS) for i, p in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{name} on {character}, prompt {i}")


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 5, "logprobs": 3},
    {"temperature": 1.2, "top_p": 0.7, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 1.0, "logit_bias": {7: 4.0, 9: -100.0}, "frequency_penalty": 1.0},
    {"temperature": 1.0, "allowed_token_ids": (3, 5, 8, 13)},
    {"temperature": 1.0, "n": 3},
    {"temperature": 0.0, "prompt_logprobs": 2, "n": 2, "logprobs": 0},
    {"temperature": 0.0, "prompt_logprobs": 20, "logprobs": 20},
]


@pytest.mark.parametrize("options", [{"character": "static"}, {"character": "dynamic"}, {"delay_ms": 0.5}])
def test_sampling_is_that_of_the_reference(tiny: Any, options: dict[str, Any]) -> None:
    model, _ = tiny("llama")
    prompts = prompts_of([5, 40, 17, 24, 3, 9, 50, 26, 70], seed=3)

    def requests() -> list[Any]:
        return [
            request(i, prompt, max_tokens=12, **params)
            for i, (prompt, params) in enumerate(zip(prompts, SAMPLED, strict=True))
        ]

    expected = finish(engine_on(ReferencePlatform(), model), requests())
    found = finish(engine_on(SimPlatform(options), model), requests())
    assert found.tokens == expected.tokens
    assert found.prompts.keys() == expected.prompts.keys()
    for key, told in expected.logprobs.items():
        for ours, theirs in zip(found.logprobs[key], told, strict=True):
            assert ours.rank == theirs.rank
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
            assert ours.top_ids == theirs.top_ids
    for key, prompt in expected.prompts.items():
        if prompt.logprobs is None:
            continue
        ours_of = found.prompts[key].logprobs
        assert ours_of is not None
        for ours, theirs in zip(ours_of[1:], prompt.logprobs[1:], strict=True):
            assert ours is not None and theirs is not None
            assert (ours.token_id, ours.rank, ours.top_ids) == (theirs.token_id, theirs.rank, theirs.top_ids)
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)


@pytest.mark.parametrize("character", ["static", "dynamic"])
def test_cached_prefixes_and_forks_give_the_same_tokens(tiny: Any, character: str) -> None:
    model, reference = tiny("llama")
    stem, *tails = prompts_of([100, 1, 9, 30], seed=5)
    prompts = [stem + tail for tail in tails]
    assembled = engine_on(SimPlatform({"character": character}), model)
    first = drive(assembled.engine, [request(0, prompts[0], max_tokens=8)])
    assert_greedy_equal(first.of(0), reference, prompts[0])
    outcome = finish(assembled, [request(i, p, max_tokens=8, n=2) for i, p in enumerate(prompts, start=1)])
    assert assembled.engine.stats().num_prefix_hits >= 3 * 96
    for i, prompt in enumerate(prompts, start=1):
        for sample in range(2):
            assert_greedy_equal(outcome.of(i, sample), reference, prompt, label=f"{character}, prompt {i}")


@pytest.mark.parametrize("character", ["static", "dynamic"])
def test_aborts_leave_the_others_alone(tiny: Any, character: str) -> None:
    model, reference = tiny("llama")
    prompts = prompts_of([40, 3, 70, 8, 55, 20, 31, 2, 90, 12], seed=7)
    assembled = engine_on(SimPlatform({"character": character, "delay_ms": 0.5}), model)
    doomed = {3: 1, 6: 2, 7: 5, 12: 7, 13: 4}

    def on_step(step: int, outcome: Outcome) -> None:
        if step in doomed:
            assembled.engine.abort(ids=[doomed[step]])

    outcome = finish(assembled, [request(i, p, max_tokens=12) for i, p in enumerate(prompts)], on_step=on_step)
    for i, prompt in enumerate(prompts):
        if outcome.reason(i) == FinishReason.ABORT:
            assert i in doomed.values()
        else:
            assert len(outcome.of(i)) == 12
            assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{character}, prompt {i}")
    assert any(outcome.reason(i) == FinishReason.ABORT for i in range(len(prompts)))


def faulty(character: str, kind: str) -> SimPlatform:
    """A device that fails in the middle."""
    return SimPlatform({"character": character, "fault_kind": kind, "fault_step": 6})


@pytest.mark.parametrize("character", ["static", "dynamic"])
@pytest.mark.parametrize("kind", ["retryable", "memory", "request"])
def test_a_fault_is_survived(tiny: Any, character: str, kind: str) -> None:
    model, reference = tiny("llama")
    prompts = prompts_of([5, 30, 50], seed=1)
    outcome = finish(
        engine_on(faulty(character, kind), model), [request(i, p, max_tokens=12) for i, p in enumerate(prompts)]
    )
    for i, prompt in enumerate(prompts):
        assert outcome.reason(i) == FinishReason.LENGTH
        assert_greedy_equal(outcome.of(i), reference, prompt, label=f"{kind}, prompt {i}")


def test_a_request_that_fails_alone_is_ended(tiny: Any) -> None:
    model, _ = tiny("llama")
    outcome = finish(engine_on(faulty("static", "request"), model), [request(0, [1, 2, 3], max_tokens=12)])
    assert outcome.reason(0) == FinishReason.ERROR
    assert "simulated fault" in next(iter(outcome.finished.values())).message


def test_a_lost_device_ends_the_engine(tiny: Any) -> None:
    model, _ = tiny("llama")
    assembled = engine_on(faulty("static", "lost"), model)
    with pytest.raises(DeviceError, match="restart"):
        drive(assembled.engine, [request(0, [1, 2, 3], max_tokens=12)])


def test_too_little_memory_says_so(tiny: Any) -> None:
    model, _ = tiny("llama")
    with pytest.raises(TenonError, match=r"memory"):
        engine_on(SimPlatform({"memory_mb": 1}), model, num_blocks=500)


def test_kernels_that_cannot_be_traced_are_refused(tiny: Any) -> None:
    model, _ = tiny("llama")
    with pytest.raises(ConfigError, match="cannot be compiled"):
        engine_on(Overpromising(), model, batch_invariant=True)


class Overpromising(SimPlatform):
    """Claims batch invariance, which only reference kernels have, and those read device values."""

    def capabilities(self, device: Device) -> Capabilities:
        return replace(super().capabilities(device), determinism=Determinism.BATCH)


@pytest.mark.parametrize("racy", [False, True])
def test_a_host_buffer_overwritten_too_early_shows(tiny: Any, racy: bool) -> None:
    """With one host buffer instead of a rotation, a step overwrites what the device has yet to read."""
    model, reference = tiny("llama")
    prompt = prompts_of([30], seed=2)[0]
    assembled = engine_on(SimPlatform({"character": "static", "delay_ms": 3.0}), model)
    packer = assembled.runner._packer
    if racy:
        packer._host = [packer._host[0]] * len(packer._host)
        packer._static.clear()
        packer._holds = [None] * len(packer._holds)

    def compare() -> None:
        outcome = finish(assembled, [request(0, prompt, max_tokens=NEW_TOKENS)])
        assert_greedy_equal(outcome.of(0), reference, prompt)

    if racy:  # other tokens, or none: the device took garbage for an index, and the request ended
        with pytest.raises(AssertionError, match=r"the reference says|no tokens to compare"):
            compare()
    else:
        compare()
