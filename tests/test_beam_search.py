"""Beam search equals Transformers': the same texts in the same order with the same scores, on every platform."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from driver import drive, prompts_of, request
from served import LIMIT_S, serving
from tiny_models import TinyModel

from tenon_core import LLM, BeamSearchParams
from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import FinishReason, sequence_key
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.errors import RequestError

pytestmark = pytest.mark.e2e
Build = Callable[..., Assembled]
TOLERANCE = 1e-3  # of a score: sums of some twenty float32 log-probabilities of a wide model


def transformers_beams(model: Any, prompt: list[int], **options: Any) -> list[tuple[list[int], float]]:
    """(output tokens, score) of the beams that Transformers returns, the best first."""
    import torch

    width = options["num_beams"]
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_return_sequences=width,
            return_dict_in_generate=True,
            output_scores=True,
            pad_token_id=0,
            **options,
        )
    texts = []
    ends = options.get("eos_token_id")
    ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
    for line, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = line[len(prompt) :][: options["max_new_tokens"]]
        end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens) - 1)
        texts.append((tokens[: end + 1], score))
    return texts


def beams_of(outcome: Any, request_id: int, width: int, penalty: float) -> list[tuple[list[int], float]]:
    found = []
    for sample in range(width):
        tokens = outcome.of(request_id, sample)
        total = sum(one.logprob for one in outcome.logprobs[sequence_key(request_id, sample)])
        found.append((tokens, total / len(tokens) ** penalty))
    return found


def likely_ends(model: Any, prompt: list[int], count: int) -> list[int]:
    """Tokens that beams come to early, so that some end before the others."""
    import torch

    with torch.no_grad():
        greedy = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=8, num_beams=4, num_return_sequences=4,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    places = greedy[:, len(prompt) + 3 : len(prompt) + 3 + count]
    return sorted({int(token) for token in places.flatten()})[:count]


CASES = [
    {},
    {"length_penalty": 0.0},
    {"length_penalty": 2.0},
    {"length_penalty": -1.0},
    {"early_stopping": True},
    {"early_stopping": "never", "length_penalty": 1.5},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_beams_equal_transformers(
    case: dict[str, Any], build_tiny: Build, tiny_model: Callable[[str], TinyModel]
) -> None:
    check(case, "reference", build_tiny, tiny_model, widths=(2, 4))


def test_beams_on_every_platform(platform_name: str, build_tiny: Build, tiny_model: Callable[[str], TinyModel]) -> None:
    check({}, platform_name, build_tiny, tiny_model, widths=(4,))


def check(
    case: dict[str, Any],
    platform: str,
    build_tiny: Build,
    tiny_model: Callable[[str], TinyModel],
    *,
    widths: tuple[int, ...],
) -> None:
    model, prompts = tiny_model("llama").model, prompts_of((9, 33), seed=4)
    penalty = float(case.get("length_penalty", 1.0))
    ends = likely_ends(model, prompts[0], 2)
    for eos in (tuple(ends), ()):
        flat = {"block_size": 8} if platform == "reference" else {}
        engine = build_tiny("llama", platform, eos_token_ids=eos, **flat).engine
        requests, expected = [], []
        for width in widths:
            for prompt in prompts:
                asked = {"beam_width": width, "n": width, "max_tokens": 20, "logprobs": 0, **case}
                requests.append(request(len(requests), prompt, ignore_eos=False, **asked))
                options = {"num_beams": width, "max_new_tokens": 20, "eos_token_id": list(eos) or None, **case}
                expected.append(transformers_beams(model, prompt, **options))
        outcome = drive(engine, [*requests, request(99, prompts[0], max_tokens=12)])
        assert len(outcome.of(99)) == 12 or outcome.reason(99) is FinishReason.STOP
        for one, beams in zip(requests, expected, strict=True):
            found = beams_of(outcome, one.id, one.params.n, penalty)
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in beams], (
                case,
                eos,
                one.params.beam_width,
            )
            np.testing.assert_allclose([s for _, s in found], [s for _, s in beams], rtol=TOLERANCE)


def test_beams_share_the_blocks_of_their_prompt(build_tiny: Build) -> None:
    prompt, width, size = prompts_of((160,))[0], 4, 16
    engine = build_tiny("llama", "reference", block_size=size, num_blocks=200, enable_prefix_caching=False).engine
    most = 0

    def watch(step: int, outcome: Any) -> None:
        nonlocal most
        allocator = engine.memory.allocator
        most = max(most, allocator.num_blocks - 1 - allocator.num_free)

    drive(engine, [request(0, prompt, beam_width=width, n=2, max_tokens=30)], on_step=watch)
    prompt_blocks = 160 // size
    own = -(-30 // size) + 1  # of each beam: what it wrote, and the copy of a block it shares no longer
    assert prompt_blocks < most <= prompt_blocks + width * own, most


@pytest.mark.parametrize("field", ["n", "prompt_logprobs"])
def test_samples_share_the_blocks_of_their_prompt(field: str, build_tiny: Build) -> None:
    """Four samples of a prompt, with or without its log-probabilities, hold its full blocks once."""
    prompt, size = prompts_of((160,))[0], 16
    engine = build_tiny("llama", "reference", block_size=size, num_blocks=200, enable_prefix_caching=False).engine
    most = 0

    def watch(step: int, outcome: Any) -> None:
        nonlocal most
        allocator = engine.memory.allocator
        most = max(most, allocator.num_blocks - 1 - allocator.num_free)

    asked = {"prompt_logprobs": 2} if field == "prompt_logprobs" else {}
    outcome = drive(engine, [request(0, prompt, n=4, max_tokens=20, **asked)], on_step=watch)
    assert 160 // size < most <= 160 // size + 4 * 2
    if asked:
        told = outcome.prompts[sequence_key(0, 0)].logprobs
        assert told is not None and len(told) == 160


def test_few_blocks_and_other_requests_change_nothing(
    platform_name: str, build_tiny: Build, tiny_model: Callable[[str], TinyModel]
) -> None:
    """Preempted beams are computed again, and two searches at once do not wait for each other forever."""
    model, prompts = tiny_model("llama").model, prompts_of((40, 50, 30), seed=7)
    expected = [transformers_beams(model, prompt, num_beams=3, max_new_tokens=30, eos_token_id=None)
                for prompt in prompts]  # fmt: skip
    engine = build_tiny("llama", platform_name, num_blocks=20, max_num_seqs=8).engine
    requests = [request(i, prompt, beam_width=3, n=3, max_tokens=30, logprobs=0) for i, prompt in enumerate(prompts)]
    outcome = drive(engine, [*requests, request(9, prompts[0], max_tokens=60)])
    for one, beams in zip(requests, expected, strict=True):
        assert [outcome.of(one.id, i) for i in range(3)] == [tokens for tokens, _ in beams]
    assert len(outcome.of(9)) == 60


def test_an_aborted_search_leaves_nothing(build_tiny: Build) -> None:
    engine = build_tiny("llama", "reference", num_blocks=60).engine

    def abort(step: int, outcome: Any) -> None:
        if step == 6:
            engine.abort(keys=[sequence_key(0, 1)])  # one beam alone cannot be ended
        if step == 9:
            engine.abort(ids=[0])

    outcome = drive(engine, [request(0, [1, 2, 3], beam_width=4, n=4, max_tokens=60)], on_step=abort)
    assert outcome.reason(0) is FinishReason.ABORT and not outcome.of(0)


def test_what_beams_cannot_do_is_refused(build_tiny: Build) -> None:
    for wrong in (
        {"n": 3}, {"top_k": 4}, {"temperature": 0.5}, {"stop": ("x",)}, {"presence_penalty": 1.0},
        {"early_stopping": "soon"}, {"early_stopping": 1}, {"length_penalty": float("nan")}, {"logit_bias": {1: 1.0}},
    ):  # fmt: skip
        with pytest.raises(RequestError):
            SamplingParams(beam_width=2, **wrong)
    with pytest.raises(RequestError):
        SamplingParams(beam_width=17)
    engine = build_tiny("llama", "reference", num_blocks=12, block_size=16).engine
    with pytest.raises(RequestError, match="KV blocks"):
        engine.submit(request(0, [1] * 40, beam_width=4, max_tokens=40))
    engine.check_integrity()


def test_the_server_s_beams_are_those_of_llm(tiny_folder: Path, tmp_path: Path) -> None:
    flags = ("--platform", "reference", "--max-num-seqs", "8", "--num-blocks", "60", "--stall-seconds", "60")
    with LLM(str(tiny_folder), platform="reference", num_blocks=60) as llm:
        params = BeamSearchParams(beam_width=3, max_tokens=12, length_penalty=0.5)
        found = llm.beam_search(["abc", "xyz"], params, use_tqdm=False)
        for one in found:
            scores = [beam.score for beam in one.sequences]
            assert len(scores) == 3 and scores == sorted(scores, reverse=True)
            for beam in one.sequences:
                total = sum(place[token].logprob for place, token in zip(beam.logprobs, beam.tokens, strict=True))
                assert abs(beam.cum_logprob - total) < 1e-4
    texts = [beam.text for one in found for beam in one.sequences]
    with serving(tiny_folder, tmp_path / "server.log", *flags) as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as ai:
            asked: dict[str, Any] = {"model": served.model(), "prompt": ["abc", "xyz"], "n": 3, "max_tokens": 12}
            beams = {"use_beam_search": True, "length_penalty": 0.5}
            answer = ai.completions.create(**asked, extra_body=beams)
            assert [choice.text for choice in answer.choices] == texts
            streamed = dict.fromkeys(range(6), "")
            for piece in ai.completions.create(**asked, extra_body=beams, stream=True):
                for choice in piece.choices:
                    streamed[choice.index] += choice.text
            assert list(streamed.values()) == texts
            wrong: list[dict[str, Any]] = [
                {"length_penalty": 1.0}, {"use_beam_search": True, "top_k": 3}, {"use_beam_search": "yes"},
                {"use_beam_search": True, "early_stopping": "soon"}, {**beams, "length_penalty": 1e9},
            ]  # fmt: skip
            for body in wrong:
                with pytest.raises(openai.BadRequestError):
                    ai.completions.create(**asked, extra_body=body)
        served.settle()
