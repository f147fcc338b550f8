"""Structured output through the engine, on every platform: it follows its grammar, and nobody else notices."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from byte_vocabulary import END, text_of, tokenizer_json
from driver import Outcome, drive, prompts_of, request
from jsonschema import Draft202012Validator

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import FinishReason, sequence_key
from tenon_core.sampling.guidance_backend import GuidancePlace
from tenon_core.sampling.structured import StructuredOutputs
from tenon_platforms.errors import CapacityError, RequestError
from tenon_platforms.pools import Pool

pytestmark = pytest.mark.e2e
Build = Callable[..., Assembled]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON = StructuredOutputs(json=json.dumps(SCHEMA), disable_any_whitespace=True)
WORD = StructuredOutputs(regex="[a-z]{3,9}!")
LONG = {"max_tokens": 200, "temperature": 1.0, "ignore_eos": False}


def built(build_tiny: Build, platform_name: str, **flat: Any) -> Any:
    return build_tiny("llama", platform_name, eos_token_ids=(END,), tokenizer_json=tokenizer_json, **flat).engine


def assert_valid(outcome: Outcome, request_id: int, sample: int = 0) -> None:
    assert outcome.reason(request_id, sample) is FinishReason.STOP, outcome.finished
    Draft202012Validator(SCHEMA).validate(json.loads(text_of(outcome.of(request_id, sample))))


@pytest.mark.parametrize(
    "flat",
    [{}, {"overlap": False}, {"max_num_batched_tokens": 16}, {"structured_outputs_backend": "xgrammar"}],
    ids=["", "eager", "chunks", "xgrammar"],
)
def test_outputs_follow_their_grammars(platform_name: str, flat: dict[str, Any], build_tiny: Build) -> None:
    prompts = prompts_of((1, 7, 40, 90))
    engine = built(build_tiny, platform_name, **flat)
    asked = [request(i, prompt, structured_outputs=JSON, n=2, **LONG) for i, prompt in enumerate(prompts)]
    asked.append(request(9, prompts[0], structured_outputs=WORD, **LONG))
    outcome = drive(engine, asked)
    for i in range(len(prompts)):
        assert_valid(outcome, i, 0)
        assert_valid(outcome, i, 1)
    assert outcome.of(0, 0) != outcome.of(0, 1)
    assert re.fullmatch("[a-z]{3,9}!", text_of(outcome.of(9)))


def test_what_waits_for_its_grammar_while_the_engine_sleeps_is_counted(build_tiny: Build) -> None:
    engine = built(build_tiny, "reference", enable_sleep_mode=True, max_waiting=3)
    (prompt,) = prompts_of((7,))
    drive(engine, [request(9, prompt, structured_outputs=WORD, **LONG)])  # the vocabulary is there
    engine.sleep(tuple(Pool))
    for place in range(3):
        engine.submit(request(place, prompt, structured_outputs=WORD, **LONG))
    assert engine.stats().num_waiting == 3
    with pytest.raises(CapacityError):
        engine.submit(request(3, prompt))
    engine.abort([0, 1])
    deadline = time.monotonic() + 60
    while True:
        try:
            engine.submit(request(3, prompt))
            break
        except CapacityError:  # until those that ended are compiled
            assert time.monotonic() < deadline, "requests that ended hold their places"
    outcome = drive(engine)
    while engine.stats().num_waiting > 2:  # until the other one that ended is compiled too
        assert time.monotonic() < deadline, "a request that ended is counted"
    assert engine.stats().num_waiting == 2 and not outcome.tokens
    engine.wake(tuple(Pool))
    outcome = drive(engine, outcome=outcome)
    assert engine.stats().num_waiting == 0
    assert re.fullmatch("[a-z]{3,9}!", text_of(outcome.of(2))) and outcome.of(3)
    assert {outcome.reason(place) for place in (0, 1)} == {FinishReason.ABORT}


def test_neighbours_and_platforms_give_the_same_tokens(platform_name: str, build_tiny: Build) -> None:
    prompts = prompts_of((12, 30, 5))
    plain = [request(i, prompt) for i, prompt in enumerate(prompts)]
    alone = drive(built(build_tiny, platform_name), plain)
    constrained = [request(10 + i, prompt, structured_outputs=JSON, max_tokens=60) for i, prompt in enumerate(prompts)]
    together = drive(built(build_tiny, platform_name), [*plain, *constrained])
    first = drive(built(build_tiny, "reference", overlap=False), constrained)
    for i in range(len(prompts)):
        assert together.of(i) == alone.of(i)
        assert together.of(10 + i) == first.of(10 + i)


def test_preemption_keeps_the_place_in_the_grammar(platform_name: str, build_tiny: Build) -> None:
    prompts = prompts_of((9, 10, 11, 12, 13, 14))
    size = build_tiny("llama", platform_name).block_size
    wide = StructuredOutputs(regex="[a-z]{60,80}!")
    asked = [request(i, prompt, structured_outputs=wide, **LONG) for i, prompt in enumerate(prompts)]
    engine = built(build_tiny, platform_name, num_blocks=len(prompts) * -(-100 // size) // 2 + 1, max_model_len=256)
    asked = [request(i, one, structured_outputs=wide, **{**LONG, "max_tokens": 90}) for i, one in enumerate(prompts)]
    outcome = drive(engine, asked)
    assert engine.stats().num_preemptions > 0
    for i in range(len(prompts)):
        assert re.fullmatch("[a-z]{60,80}!", text_of(outcome.of(i)))


def test_min_tokens_and_ignore_eos_give_way_to_the_grammar(build_tiny: Build) -> None:
    engine = built(build_tiny, "reference")
    many = StructuredOutputs(regex="a+")
    few = StructuredOutputs(choice=("no", "yes"))
    outcome = drive(
        engine,
        [
            request(0, [1, 2], structured_outputs=many, **{**LONG, "min_tokens": 20, "logit_bias": {END: 100.0}}),
            request(1, [1, 2], structured_outputs=few, **{**LONG, "min_tokens": 20}),
            request(2, [1, 2], structured_outputs=few, **{**LONG, "ignore_eos": True}),
        ],
    )
    assert len(outcome.of(0)) == 21, "twenty letters, then the end that its bias asks for"
    for i in (1, 2):
        assert text_of(outcome.of(i)) in ("no", "yes")
        assert outcome.reason(i) is FinishReason.STOP


def test_a_grammar_without_a_way_out_ends_its_request_alone(platform_name: str, build_tiny: Build) -> None:
    plain = request(0, [5, 6, 7])
    alone = drive(built(build_tiny, platform_name), [plain])
    stuck = request(1, [1, 2], structured_outputs=WORD, allowed_token_ids=(0, 1), **LONG)
    outcome = drive(built(build_tiny, platform_name), [plain, stuck])
    end = outcome.finished[sequence_key(1, 0)]
    assert FinishReason(end.reason) is FinishReason.ERROR
    assert end.kind == "RequestError"
    assert "structured_outputs" in end.message
    assert outcome.of(0) == alone.of(0)


def test_what_does_not_compile_ends_its_request_alone(build_tiny: Build) -> None:
    engine = built(build_tiny, "reference")
    outcome = drive(engine, [request(0, [1]), request(1, [1], structured_outputs=StructuredOutputs(regex="("), n=2)])
    assert outcome.reason(0) is FinishReason.LENGTH
    for sample in (0, 1):
        assert outcome.finished[sequence_key(1, sample)].kind == "RequestError"


@pytest.mark.parametrize("method", ["fill", "advance"])
def test_what_a_grammar_s_library_raises_ends_its_request_alone(
    method: str, build_tiny: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: Any) -> None:
        raise KeyError("lark_grammar")

    plain = request(0, [5, 6, 7])
    alone = drive(built(build_tiny, "reference"), [plain])
    monkeypatch.setattr(GuidancePlace, method, stumble)
    outcome = drive(built(build_tiny, "reference"), [plain, request(1, [1, 2], structured_outputs=WORD, **LONG)])
    end = outcome.finished[sequence_key(1, 0)]
    assert (end.kind, end.message) == ("RequestError", "structured_outputs is not usable: KeyError")
    assert outcome.of(0) == alone.of(0)


def test_aborted_while_compiling(build_tiny: Build) -> None:
    engine = built(build_tiny, "reference")
    for i in range(6):
        engine.submit(request(i, [1, 2, 3], structured_outputs=JSON, n=3, **LONG))
    engine.abort(ids=[0, 1], keys=[sequence_key(2, 0), sequence_key(3, 1), sequence_key(4, 2)])
    outcome = drive(engine)
    for key, end in outcome.finished.items():
        gone = key >> 16 in (0, 1) or key in (sequence_key(2, 0), sequence_key(3, 1), sequence_key(4, 2))
        assert FinishReason(end.reason) is (FinishReason.ABORT if gone else FinishReason.STOP)
    assert len(outcome.finished) == 18
    for sample in (1, 2):
        assert_valid(outcome, 2, sample)


def test_both_libraries_in_one_engine(build_tiny: Build) -> None:
    """`auto`: what llguidance does not follow goes to the other one, beside its neighbours."""
    names = StructuredOutputs(json='{"type": "object", "propertyNames": {"pattern": "^[ab]$"}, "maxProperties": 2}')
    engine = built(build_tiny, "reference")
    outcome = drive(engine, [request(0, [1, 2], structured_outputs=JSON, **LONG),
                             request(1, [1, 2], structured_outputs=names, **{**LONG, "temperature": 0.5})])  # fmt: skip
    assert_valid(outcome, 0)
    text = text_of(outcome.of(1))
    ended = outcome.reason(1) is FinishReason.STOP
    assert (set(json.loads(text)) <= {"a", "b"}) if ended else re.match(r'\{\s*("[ab]|$)', text), text


def test_refusals_at_submission(build_tiny: Build) -> None:
    without_end = build_tiny("llama", "reference", tokenizer_json=tokenizer_json).engine
    with pytest.raises(RequestError, match="end token"):
        without_end.submit(request(0, [1], structured_outputs=WORD))
    without_tokenizer = build_tiny("llama", "reference", eos_token_ids=(END,)).engine
    with pytest.raises(RequestError, match="tokenizer"):
        without_tokenizer.submit(request(0, [1], structured_outputs=WORD))
    assert not without_tokenizer.has_work()
