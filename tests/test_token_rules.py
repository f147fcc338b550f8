"""Bad words and limits of thoughts through the engine, on every platform: what may come next depends on what came."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from byte_vocabulary import END, tokenizer_json
from driver import drive, prompts_of, request

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import FinishReason, sequence_key
from tenon_core.sampling.rules import ThinkingLimit
from tenon_core.sampling.structured import StructuredOutputs

pytestmark = pytest.mark.e2e
Build = Callable[..., Assembled]
MODES: list[dict[str, Any]] = [{}, {"overlap": False}, {"max_num_batched_tokens": 16}]
LONG = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
MARKS: dict[str, Any] = {"opens": ("<t>",), "closes": ("</t>",), "end": "</t>"}


def built(build_tiny: Build, platform_name: str, **flat: Any) -> Any:
    return build_tiny("llama", platform_name, eos_token_ids=(END,), tokenizer_json=tokenizer_json, **flat).engine


def bad(*words: tuple[int, ...]) -> dict[str, Any]:
    return {"bad_words": ("what these tokens say",), "bad_word_ids": words}


def holds(tokens: list[int], word: tuple[int, ...]) -> bool:
    return any(tuple(tokens[place : place + len(word)]) == word for place in range(len(tokens)))


def by_hand(engine: Any, prompt: list[int], words: tuple[tuple[int, ...], ...], count: int) -> list[int]:
    """Greedy decoding one request a token: the best of twenty that completes no word. Asks the engine for no rule."""
    output: list[int] = []
    for place in range(count):
        outcome = drive(engine, [request(place, [*prompt, *output], max_tokens=1, temperature=0.0, logprobs=20)])
        top = outcome.logprobs[sequence_key(place, 0)][0].top_ids
        output.append(next(token for token in top if not any((*output, token)[-len(word) :] == word for word in words)))
    return output


@pytest.mark.parametrize("flat", MODES, ids=["", "eager", "chunks"])
def test_bad_words_are_those_of_a_decoding_by_hand(platform_name: str, flat: dict[str, Any], build_tiny: Build) -> None:
    prompts = prompts_of((5, 19, 40))
    plain = drive(built(build_tiny, platform_name), [request(i, one, **LONG) for i, one in enumerate(prompts)])
    words = []
    for i in range(len(prompts)):
        came = plain.of(i)
        words.append(((came[0], came[1]), (came[4],), (came[7], came[8], came[9]), tuple(came[11:15]), (1, 2, 3)))
    asked = [request(i, one, **bad(*words[i]), **LONG) for i, one in enumerate(prompts)]
    asked.append(request(9, prompts[0], **LONG))
    outcome = drive(built(build_tiny, platform_name, **flat), asked)
    reference = built(build_tiny, "reference")
    for i, prompt in enumerate(prompts):
        assert outcome.of(i) == by_hand(reference, list(prompt), words[i], LONG["max_tokens"])
        assert not any(holds(outcome.of(i), word) for word in words[i])
        assert outcome.of(i)[0] == plain.of(i)[0] and outcome.of(i)[1] != plain.of(i)[1], "the first is no whole word"
    assert outcome.of(9) == plain.of(0), "who asks for nothing notices nothing"


def test_samples_have_a_place_each(platform_name: str, build_tiny: Build) -> None:
    prompt = prompts_of((7,))[0]
    hot = {"max_tokens": 60, "temperature": 1.5, "n": 4, "ignore_eos": True}
    words = tuple((first, second) for first in range(256) for second in range(0, 256, 2) if (first + second) % 3 == 0)
    outcome = drive(built(build_tiny, platform_name), [request(0, prompt, **bad(*words), **hot)])
    tails = [outcome.of(0, sample) for sample in range(4)]
    forbidden = set(words)
    assert not any(pair in forbidden for tail in tails for pair in pairwise(tail))
    assert len({tuple(tail) for tail in tails}) == 4 and all(len(tail) == 60 for tail in tails)


def test_preemption_keeps_the_place(platform_name: str, build_tiny: Build) -> None:
    prompts = prompts_of((9, 10, 11, 12, 13, 14))
    size = build_tiny("llama", platform_name).block_size
    long = {**LONG, "max_tokens": 90}
    plain = drive(built(build_tiny, platform_name), [request(i, one, **long) for i, one in enumerate(prompts)])
    words = {i: tuple(tuple(plain.of(i)[place : place + 3]) for place in range(0, 87, 9)) for i in range(len(prompts))}
    asked = [request(i, one, **bad(*words[i]), **long) for i, one in enumerate(prompts)]
    calm = drive(built(build_tiny, platform_name), asked)
    engine = built(build_tiny, platform_name, num_blocks=len(prompts) * -(-100 // size) // 2 + 1, max_model_len=256)
    outcome = drive(engine, asked)
    assert engine.stats().num_preemptions > 0
    for i in range(len(prompts)):
        assert outcome.of(i) == calm.of(i)
        assert not any(holds(outcome.of(i), word) for word in words[i])


def test_bad_words_narrow_a_grammar(platform_name: str, build_tiny: Build) -> None:
    choice = StructuredOutputs(choice=("nob", "not"))
    for word, left in (("ob", "not"), ("not", "nob")):
        asked = request(0, [1, 2], structured_outputs=choice, **bad(tuple(word.encode())), **{**LONG, "temperature": 1})
        outcome = drive(built(build_tiny, platform_name), [asked])
        assert bytes(outcome.of(0)[:-1]).decode() == left and outcome.of(0)[-1] == END


def test_words_that_leave_nothing_end_their_request_alone(platform_name: str, build_tiny: Build) -> None:
    plain = request(0, [5, 6, 7])
    alone = drive(built(build_tiny, platform_name), [plain])
    choice = StructuredOutputs(choice=("no",))
    asked = [
        plain,
        request(1, [1, 2], allowed_token_ids=(4, 5), **bad((4,), (5,)), **LONG),
        request(2, [1, 2], structured_outputs=choice, **bad((ord("n"), ord("o"))), **LONG),
    ]
    outcome = drive(built(build_tiny, platform_name), asked)
    for i in (1, 2):
        end = outcome.finished[sequence_key(i, 0)]
        assert (FinishReason(end.reason), end.kind, end.param) == (FinishReason.ERROR, "RequestError", "bad_words")
        assert "bad_words" in end.message
    assert outcome.of(0) == alone.of(0)


def test_allowed_ids_that_leave_a_grammar_nothing_end_their_request_alone(
    platform_name: str, build_tiny: Build
) -> None:
    wanted = StructuredOutputs(regex="ab")
    a, b = ord("a"), ord("b")
    params = {"max_tokens": 8, "structured_outputs": wanted}
    asked = [
        request(0, [1, 2, 3], **params, allowed_token_ids=(a, b, END)),
        request(1, [1, 2, 3], **params, allowed_token_ids=(a, END)),
        request(2, [1, 2, 3], **params, allowed_token_ids=(a, b)),
    ]
    outcome = drive(built(build_tiny, platform_name), asked)
    assert outcome.of(0) == [a, b, END]
    for place in (1, 2):
        end = outcome.finished[sequence_key(place, 0)]
        assert (FinishReason(end.reason), end.param) == (FinishReason.ERROR, "allowed_token_ids")
        assert "add those it needs" in end.message


@pytest.mark.parametrize("flat", MODES, ids=["", "eager", "chunks"])
def test_a_thought_ends_where_its_tokens_are_spent(platform_name: str, flat: dict[str, Any], build_tiny: Build) -> None:
    prompts = prompts_of((6, 30))
    engine = built(build_tiny, platform_name, **flat)
    limit = ThinkingLimit(tokens=5, is_open=True, **MARKS)
    asked = [request(i, one, thinking=limit, **LONG) for i, one in enumerate(prompts)]
    asked.append(request(8, prompts[0], thinking=ThinkingLimit(tokens=0, is_open=True, **MARKS), **LONG))
    asked.append(request(9, prompts[0], thinking=ThinkingLimit(tokens=5, **MARKS), **LONG))
    outcome = drive(engine, asked)
    plain = drive(built(build_tiny, platform_name), [request(i, one, **LONG) for i, one in enumerate(prompts)])
    end = list(b"</t>")
    for i, prompt in enumerate(prompts):
        came = outcome.of(i)
        assert came[:5] == plain.of(i)[:5] and came[5:9] == end
        rest = request(20, [*prompt, *came[:9]], **{**LONG, "max_tokens": 15})
        assert came[9:] == drive(built(build_tiny, platform_name), [rest]).of(20), "what follows is free"
    assert outcome.of(8)[:4] == end
    assert outcome.of(9) == plain.of(0), "nothing was thought, so nothing is ended"


def test_a_thought_that_ends_by_itself_is_left_alone(platform_name: str, build_tiny: Build) -> None:
    """The grammar makes the model think for three letters, then answer: the limit of four never comes into force."""
    wanted = StructuredOutputs(regex="<t>[a-z]{3}</t>[a-z]{9}")
    short = StructuredOutputs(regex="<t>[a-z]{6}</t>[a-z]{9}")
    limit = ThinkingLimit(tokens=8, **MARKS)
    long = {**LONG, "temperature": 1.0, "max_tokens": 40, "seed": 5}
    asked = [
        request(0, [1, 2], structured_outputs=wanted, thinking=limit, **long),
        request(1, [1, 2], structured_outputs=wanted, **long),
        request(2, [1, 2], structured_outputs=short, thinking=ThinkingLimit(tokens=4, **MARKS), **long),
    ]
    outcome = drive(built(build_tiny, platform_name), asked)
    assert outcome.of(0) == outcome.of(1)[: len(outcome.of(0))] and outcome.reason(0) is FinishReason.STOP
    end = outcome.finished[sequence_key(2, 0)]
    assert (FinishReason(end.reason), end.param) == (FinishReason.ERROR, "thinking_token_budget"), "it cannot be both"
