"""Sampling through the whole engine: stops, log-probabilities, every parameter against its definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from driver import Outcome, drive, prompts_of, request
from equality import MULTIPLE, Reference, assert_greedy_equal
from sampling_oracle import assert_best, edited, noisy, penalized

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import FinishReason, TokenLogprobs, sequence_key
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.capabilities import Determinism
from tenon_platforms.noise import sequence_key as noise_key

pytestmark = pytest.mark.e2e
Build = Callable[..., Assembled]
References = Callable[[str], Reference]


def assert_follows(
    tokens: list[int],
    reference: Reference,
    prompt: list[int],
    params: SamplingParams,
    *,
    sample: int = 0,
    eos_token_ids: tuple[int, ...] = (),
) -> None:
    """Every token is the definition's choice from the reference's logits, up to their measured error."""
    assert params.seed is not None
    sequence, first = [*prompt, *tokens[:-1]], len(prompt) - 1
    exact = reference.wide(sequence)[first:]
    error = np.abs(reference.narrow(sequence)[first:] - exact).max()
    bound = MULTIPLE * error * max(params.repetition_penalty, 1.0) / min(max(params.temperature, 1e-5), 1.0)
    if params.temperature == 0:
        bound = MULTIPLE * error * max(params.repetition_penalty, 1.0)
    stops = [*eos_token_ids, *params.stop_token_ids]
    for place, token in enumerate(tokens):
        scores = edited(
            exact[place],
            bias=params.logit_bias,
            allowed=params.allowed_token_ids,
            banned=stops if place < params.min_tokens else [],
        )
        if params.needs_penalties:
            scores = penalized(
                scores,
                prompt=prompt,
                output=tokens[:place],
                repetition=params.repetition_penalty,
                frequency=params.frequency_penalty,
                presence=params.presence_penalty,
            )
        scores = noisy(
            scores,
            key=noise_key(params.seed, sample),
            position=len(prompt) + place,
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
        )
        assert_best(scores, token, bound=bound + 1e-4, label=f"token {place} of {params}")


REQUESTS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 3.0, "n": 3},
    {"temperature": 2.0, "top_k": 3},
    {"temperature": 4.0, "top_p": 0.6},
    {"temperature": 4.0, "min_p": 0.1},
    {"temperature": 4.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": -1},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"temperature": 2.0, "repetition_penalty": 0.7, "frequency_penalty": -1.0, "n": 2},
    {"logit_bias": {5: 30.0, 9: -30.0}},
    {"allowed_token_ids": (3, 4, 5, 250)},
    {"temperature": 5.0, "allowed_token_ids": (3, 4, 5, 250), "logit_bias": {3: 4.0, 77: 100.0}},
    {"temperature": 5.0, "min_tokens": 20, "stop_token_ids": (3, 8, 13, 70, 200)},
    {"temperature": 2.5, "logprobs": 2, "presence_penalty": 1.0, "logit_bias": {1: 3.0}, "seed": 2**64 - 1},
]


@pytest.mark.parametrize("variant", [{}, {"max_num_batched_tokens": 16}, {"num_blocks": "tiny"}], ids=str)
def test_every_parameter_follows_the_definition(
    variant: dict[str, Any], platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    prompts = prompts_of([3 + 5 * i for i in range(len(REQUESTS))])
    if variant:
        size = build_tiny("llama", platform_name).block_size
        variant = {k: 8 * -(-100 // size) // 2 if v == "tiny" else v for k, v in variant.items()}
    engine = build_tiny("llama", platform_name, **variant).engine
    length = 72 if "num_blocks" in variant else 24  # longer than what admission keeps back, so that blocks run out
    requests = [request(i, prompts[i], max_tokens=length, **fields) for i, fields in enumerate(REQUESTS)]
    outcome = drive(engine, requests)
    if "num_blocks" in variant:
        assert engine.stats().num_preemptions > 0
    for one, prompt in zip(requests, prompts, strict=True):
        for sample in range(one.params.n):
            assert_follows(outcome.of(one.id, sample), reference_of("llama"), prompt, one.params, sample=sample)


def test_the_same_seed_gives_the_same_tokens_whatever_else_runs(platform_name: str, build_tiny: Build) -> None:
    assembled = build_tiny("llama", platform_name)
    if assembled.capabilities.determinism is Determinism.NONE:
        pytest.skip(f"{platform_name} does not claim determinism")
    (prompt,) = prompts_of((30,))
    asked = request(0, prompt, temperature=1.5, seed=1234, max_tokens=48)
    alone = drive(assembled.engine, [asked]).of(0)
    again = drive(assembled.engine, [asked]).of(0)
    others = [request(1 + i, p, temperature=2.0, top_k=4) for i, p in enumerate(prompts_of((9, 50, 30), seed=8))]
    beside = drive(build_tiny("llama", platform_name).engine, [*others, asked]).of(0)
    assert alone == again == beside  # logits are wide: rounding by the batch's size cannot tell
    assert drive(assembled.engine, [request(0, prompt, temperature=1.5, seed=1235, max_tokens=48)]).of(0) != alone


# ends


def greedy(build_tiny: Build, platform_name: str, prompt: list[int], **fields: Any) -> Outcome:
    eos = fields.pop("eos", ())
    return drive(build_tiny("llama", platform_name, eos_token_ids=eos).engine, [request(0, prompt, **fields)])


def first_place_of(tokens: list[int], least: int) -> int:
    """A place from `least` on whose token did not come before."""
    return next(i for i in range(least, len(tokens)) if tokens[i] not in tokens[:i])


def test_end_tokens_stop_token_ids_and_limits(platform_name: str, build_tiny: Build) -> None:
    (prompt,) = prompts_of((12,))
    free = greedy(build_tiny, platform_name, prompt).of(0)
    assert len(free) == 32
    place = first_place_of(free, 3)
    stop = free[place]

    ended = greedy(build_tiny, platform_name, prompt, eos=(250, stop), ignore_eos=False)
    assert ended.of(0) == free[: place + 1] and ended.reason(0) is FinishReason.STOP
    assert ended.finished[sequence_key(0, 0)].stop_token == stop

    assert greedy(build_tiny, platform_name, prompt, eos=(stop,), ignore_eos=True).of(0) == free

    by_id = greedy(build_tiny, platform_name, prompt, stop_token_ids=(stop, 251))
    assert by_id.of(0) == free[: place + 1] and by_id.finished[sequence_key(0, 0)].stop_token == stop

    short = greedy(build_tiny, platform_name, prompt, max_tokens=place)
    assert short.of(0) == free[:place] and short.reason(0) is FinishReason.LENGTH
    one = greedy(build_tiny, platform_name, prompt, max_tokens=1)
    assert one.of(0) == free[:1] and one.reason(0) is FinishReason.LENGTH

    at_limit = greedy(build_tiny, platform_name, prompt, eos=(stop,), ignore_eos=False, max_tokens=place + 1)
    assert at_limit.of(0) == free[: place + 1] and at_limit.reason(0) is FinishReason.STOP


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_bans_every_stop_until_then(
    ignore_eos: bool, platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    (prompt,) = prompts_of((12,))
    free = greedy(build_tiny, platform_name, prompt).of(0)
    place = first_place_of(free, 3)
    stop = free[place]
    outcome = greedy(
        build_tiny,
        platform_name,
        prompt,
        eos=(249,) if ignore_eos else (stop,),
        ignore_eos=ignore_eos,
        stop_token_ids=(stop,) if ignore_eos else (),
        min_tokens=place + 6,
    )
    tokens = outcome.of(0)
    assert len(tokens) >= place + 6 and stop not in tokens[: place + 6]
    assert tokens[:place] == free[:place]


def test_the_context_ends_a_sequence(platform_name: str, build_tiny: Build, reference_of: References) -> None:
    (prompt,) = prompts_of((500,))
    outcome = drive(build_tiny("llama", platform_name).engine, [request(0, prompt, max_tokens=12)])
    assert outcome.reason(0) is FinishReason.LENGTH
    assert_greedy_equal(outcome.of(0), reference_of("llama"), prompt)


# log-probabilities


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def assert_logprobs(found: TokenLogprobs, exact: np.ndarray, token: int, count: int, bound: float) -> None:
    assert found.token_id == token
    assert abs(found.logprob - exact[token]) <= bound
    assert (exact > exact[token] + bound).sum() + 1 <= found.rank <= (exact >= exact[token] - bound).sum()
    assert len(found.top_ids) == len(found.top_logprobs) == count
    np.testing.assert_allclose(found.top_logprobs, np.sort(exact)[::-1][:count], atol=bound)
    np.testing.assert_allclose(exact[list(found.top_ids)], found.top_logprobs, atol=bound)


@pytest.mark.parametrize("variant", [{}, {"max_num_batched_tokens": 16}], ids=str)
def test_logprobs_equal_transformers(
    variant: dict[str, Any], platform_name: str, build_tiny: Build, reference_of: References
) -> None:
    prompts = prompts_of((1, 2, 40, 70, 25))
    wants: list[dict[str, Any]] = [
        {"logprobs": 3, "prompt_logprobs": 2},
        {"logprobs": 0, "prompt_logprobs": 0, "temperature": 2.0},
        {"prompt_logprobs": 5, "n": 2},
        {"logprobs": 20, "temperature": 3.0, "n": 2},
        {},
    ]
    engine = build_tiny("llama", platform_name, **variant).engine
    drive(engine, [request(90, prompts[2])])  # cached now: prompt log-probabilities must not be cut short by a hit
    requests = [request(i, prompts[i], **fields) for i, fields in enumerate(wants)]
    outcome = drive(engine, requests)
    for i, (one, prompt) in enumerate(zip(requests, prompts, strict=True)):
        for sample in range(one.params.n):
            key, tokens = sequence_key(i, sample), outcome.of(i, sample)
            sequence = [*prompt, *tokens[:-1]]
            exact = log_softmax(reference_of("llama").wide(sequence))
            bound = MULTIPLE * np.abs(log_softmax(reference_of("llama").narrow(sequence)) - exact).max() + 1e-4
            if one.params.logprobs is None:
                assert key not in outcome.logprobs
            else:
                assert len(outcome.logprobs[key]) == len(tokens)
                for place, found in enumerate(outcome.logprobs[key]):
                    line = exact[len(prompt) - 1 + place]
                    assert_logprobs(found, line, tokens[place], one.params.logprobs, bound)
            if sample:
                continue
            info = outcome.prompts[key]
            if one.params.prompt_logprobs is None:
                assert info.logprobs is None
                continue
            assert info.logprobs is not None and len(info.logprobs) == len(prompt) and info.logprobs[0] is None
            for place, held in enumerate(info.logprobs[1:], start=1):
                assert held is not None
                assert_logprobs(held, exact[place - 1], prompt[place], one.params.prompt_logprobs, bound)
