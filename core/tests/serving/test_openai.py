"""The official client: streaming and not, every shape, and 32 at once with one in four given up mid-stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest
from running_server import KEY, RunningServer

pytestmark = pytest.mark.e2e
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def ai(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_completions(ai: openai.OpenAI) -> None:
    answer = ai.completions.create(model="fake", prompt=["ab", "cd"], max_tokens=3, n=2, logprobs=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["ababa", "abbcb", "cdcdc", "cdded"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens == list("ababa")
    assert logprobs.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5]
    assert logprobs.text_offset == [0, 1, 2, 3, 4]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 12)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")


def test_completions_in_a_stream(ai: openai.OpenAI) -> None:
    stream = ai.completions.create(
        model="fake", prompt="abc", max_tokens=4, stream=True, echo=True, stream_options={"include_usage": True},
        logprobs=1, n=2,
    )  # fmt: skip
    texts, reasons, tokens, usage = {0: "", 1: ""}, {}, [], None
    for piece in stream:
        usage = piece.usage or usage
        for choice in piece.choices:
            texts[choice.index] += choice.text
            if choice.logprobs and choice.index == 0:
                tokens += choice.logprobs.tokens or []
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == {0: "abcabca", 1: "abcbcdb"}
    assert reasons == {0: "length", 1: "length"}
    assert tokens == list("abcabca")
    assert usage is not None and usage.completion_tokens == 8


PROMPT_ALONE: dict[str, Any] = {"model": "fake", "prompt": ["ab", "cde"], "max_tokens": 0, "echo": True}


def test_a_prompt_alone_is_scored(ai: openai.OpenAI) -> None:
    answer = ai.completions.create(
        **PROMPT_ALONE, n=2, logprobs=1, extra_body={"prompt_logprobs": 1, "return_token_ids": True}
    )
    assert [(one.index, one.text, one.finish_reason) for one in answer.choices] == [
        (0, "ab", "length"), (1, "ab", "length"), (2, "cde", "length"), (3, "cde", "length"),
    ]  # fmt: skip
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 0, 5)
    last = answer.choices[-1].to_dict()
    assert last["logprobs"] == {
        "tokens": ["c", "d", "e"], "token_logprobs": [None, -0.5, -0.5], "text_offset": [0, 1, 2],
        "top_logprobs": [None, {"d": -0.5}, {"e": -0.5}],
    }  # fmt: skip
    assert (last["token_ids"], last["prompt_token_ids"], len(last["prompt_logprobs"])) == ([], [99, 100, 101], 3)
    ends = ai.completions.create(model="fake", prompt=[[258, 97]], max_tokens=0, echo=True, logprobs=0).choices[0]
    assert ends.finish_reason == "length" and ends.logprobs is not None and ends.logprobs.tokens is not None
    assert len(ends.logprobs.tokens) == 2, "what would be generated is an end token, and is not told"


def test_a_prompt_alone_has_no_least_length_and_its_own_limit(ai: openai.OpenAI) -> None:
    answer = ai.completions.create(**PROMPT_ALONE, extra_body={"min_tokens": 2})
    assert [one.text for one in answer.choices] == ["ab", "cde"]
    with pytest.raises(openai.BadRequestError, match="min_tokens is -1"):
        ai.completions.create(**PROMPT_ALONE, extra_body={"min_tokens": -1})
    most: dict[str, Any] = {**PROMPT_ALONE, "prompt": [[97] * 4095]}
    answer = ai.completions.create(**most)
    assert answer.usage is not None and answer.usage.prompt_tokens == 4095
    with pytest.raises(openai.BadRequestError, match="has 4096 tokens: at most 4095 fit where it alone is wanted"):
        ai.completions.create(**{**most, "prompt": [[97], [97] * 4096]})


def test_a_prompt_alone_in_a_stream(ai: openai.OpenAI) -> None:
    with ai.completions.create(
        **PROMPT_ALONE, logprobs=1, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *found, last = list(stream)
    assert [(one.choices[0].index, one.choices[0].text) for one in found] == [(0, "ab"), (1, "cde")]
    assert {one.choices[0].finish_reason for one in found} == {"length"}
    assert [len(one.choices[0].logprobs.tokens) for one in found] == [2, 3]
    assert last.usage is not None and (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 0)


def test_chat(ai: openai.OpenAI) -> None:
    answer = ai.chat.completions.create(
        model="fake", messages=HELLO, max_completion_tokens=3, logprobs=True, top_logprobs=2, n=2, seed=4, user="me",
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    assert [choice.message.role for choice in answer.choices] == ["assistant"] * 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(logprobs.content) == 3 and len(logprobs.content[0].top_logprobs) == 2
    assert answer.choices[0].message.content == "user\nhi"[:2]  # the control token has no text
    assert answer.choices[0].token_ids == [257, ord("u"), ord("s")]  # type: ignore[attr-defined]


def test_chat_in_a_stream_equals_the_whole(ai: openai.OpenAI) -> None:
    asked = {"model": "fake", "messages": [{"role": "user", "content": "\u00e9\u20ac\U0001f600"}], "max_tokens": 60}
    whole = ai.chat.completions.create(**asked, stop=["assist"])  # type: ignore[call-overload]
    text, roles, reason = "", [], None
    for piece in ai.chat.completions.create(**asked, stop=["assist"], stream=True):  # type: ignore[call-overload]
        delta = piece.choices[0].delta
        text += delta.content or ""
        assert "\ufffd" not in (delta.content or "")
        roles.append(delta.role)
        reason = piece.choices[0].finish_reason or reason
    assert text == whole.choices[0].message.content == "user\n\u00e9\u20ac\U0001f600"
    assert roles[0] == "assistant" and set(roles[1:]) == {None}
    assert reason == whole.choices[0].finish_reason == "stop"


def test_models_and_errors(ai: openai.OpenAI) -> None:
    assert [model.id for model in ai.models.list()] == ["fake"]
    assert ai.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError, match="not served"):
        ai.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ai.completions.create(model="fake", prompt="x", temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=str(ai.base_url), api_key="wrong", max_retries=0).models.list()


def test_a_request_that_fails_alone(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        ai.completions.create(model="fake", prompt=[1], max_tokens=3)
    assert ".py" not in str(caught.value)


def test_many_at_once_with_some_given_up(server: RunningServer) -> None:
    async def one(ai: openai.AsyncOpenAI, place: int) -> tuple[int, str]:
        prompt, length = f"p{place:02d}-", 5 + 7 * place % 180
        stream = await ai.completions.create(
            model="fake", prompt=prompt, max_tokens=3000 if place % 4 == 0 else length, stream=True
        )
        text = ""
        async for piece in stream:
            text += piece.choices[0].text
            if place % 4 == 0 and len(text) > 5:
                await stream.close()
                return place, ""
        return place, text if text == (prompt * length)[:length] else f"wrong: {text!r}"

    async def everything() -> list[tuple[int, str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as ai:
            return await asyncio.gather(*(one(ai, place) for place in range(32)))

    for place, text in asyncio.run(everything()):
        assert not text.startswith("wrong"), (place, text)
        assert bool(text) == (place % 4 != 0)
    with server.client() as client:
        for _ in range(50):
            lines = client.get("/metrics").text.splitlines()
            running = next(line for line in lines if line.startswith("tenon:num_requests_running{"))
            if running.endswith(" 0.0"):
                break
        assert running.endswith(" 0.0"), running
        aborts = next(line for line in lines if 'finished_reason="abort"' in line)
        assert float(aborts.rsplit(" ", 1)[1]) >= 8
    assert len(psutil.Process(server.process.pid).net_connections("tcp")) < 40
