"""Anthropic's Messages through the official client: whole, streamed, tools and their results, thoughts, errors.

The fake engine repeats the prompt, and this template renders the last message as the prompt: so a test says what the
model answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import psutil
import pytest
from fake_model import model_folder
from running_server import KEY, RunningServer, healthy_server
from spoken_calls import ANSWER, CALLS, MEANT, TEMPLATE

pytestmark = pytest.mark.e2e
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "Weather", "input_schema": CITY, "cache_control": {"type": "ephemeral"}},
    {"name": "now", "input_schema": {"type": "object"}, "type": "custom"},
]
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
SWITCHED = "{% if enable_thinking %}{% endif %}" + TEMPLATE.replace("{{ reasoning_effort }}", "{{ enable_thinking }}")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("messages") / "qwen"
    with healthy_server(model_folder(path, template=SWITCHED), path / "server.log") as running:
        yield running


@pytest.fixture
def ai(writer: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=writer.url, api_key=KEY, max_retries=0) as made:
        yield made


def asked(content: Any, **options: Any) -> dict[str, Any]:
    messages = [*options.pop("before", ()), {"role": "user", "content": content}]
    return {"model": "fake", "max_tokens": 2000, "messages": messages, **options}


def shape(message: Any) -> list[Any]:
    """The content without ids."""
    found: list[Any] = []
    for block in message.content:
        if block.type == "tool_use":
            found.append((block.type, block.name, block.input))
        else:
            found.append((block.type, getattr(block, block.type)))
    return found


def test_a_thought_ends_where_its_budget_is_spent(ai: anthropic.Anthropic) -> None:
    long = asked("<think>" + "x" * 1500 + "</think>answer", thinking=THINKING)
    message = ai.messages.create(**long)
    assert shape(message)[0] == ("thinking", "x" * 1024), "the budget, to the token"
    assert shape(message)[1][0] == "text"
    with ai.messages.stream(**long) as stream:
        streamed = stream.get_final_message()
    assert shape(streamed) == shape(message)
    short = ai.messages.create(**asked("<think>" + "x" * 1000 + "</think>answer", thinking=THINKING))
    assert shape(short)[0] == ("thinking", "x" * 1000) and shape(short)[1][1].startswith("answer")


MEANT_CONTENT = [("text", "I look it up."), *(("tool_use", name, given) for name, given in MEANT)]


def test_text(ai: anthropic.Anthropic) -> None:
    message = ai.messages.create(
        **asked("Hello \u20ac", system="Be brief.", metadata={"user_id": "me"}, extra_body={"top_k": 5})
    )
    assert shape(message) == [("text", "Hello \u20ac")] and message.role == "assistant"
    assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "fake")
    assert message.id.startswith("msg_") and message.usage.output_tokens == len("Hello \u20ac".encode()) + 1
    assert message._request_id


def test_calls_and_thoughts(ai: anthropic.Anthropic) -> None:
    message = ai.messages.create(**asked(ANSWER, tools=TOOLS))
    assert shape(message) == MEANT_CONTENT and message.stop_reason == "tool_use"  # thoughts were not asked for
    message = ai.messages.create(**asked(ANSWER, tools=TOOLS, thinking=THINKING))
    assert shape(message) == [("thinking", "Which city \u20ac?"), *MEANT_CONTENT]
    assert message.content[0].signature  # type: ignore[union-attr]


def test_a_stream_says_the_same(ai: anthropic.Anthropic) -> None:
    with ai.messages.stream(**asked(ANSWER, tools=TOOLS, thinking=THINKING)) as stream:
        events: list[Any] = list(stream)
        final = stream.get_final_message()
    assert shape(final) == [("thinking", "Which city \u20ac?"), *MEANT_CONTENT] and final.stop_reason == "tool_use"
    whole = ai.messages.create(**asked(ANSWER, tools=TOOLS, thinking=THINKING))
    assert shape(whole) == shape(final) and whole.usage.output_tokens == final.usage.output_tokens
    assert whole.content[0].signature == final.content[0].signature  # type: ignore[union-attr]
    raw: list[Any] = list(ai.messages.create(**asked(ANSWER, tools=TOOLS, thinking=THINKING), stream=True))
    kinds = [one.type for one in raw]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    collapsed = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    assert collapsed[1:-2] == ["content_block_start", "content_block_delta", "content_block_stop"] * 4
    starts = [one.index for one in raw if one.type == "content_block_start"]
    assert starts == [one.index for one in raw if one.type == "content_block_stop"] == [0, 1, 2, 3]
    assert raw[0].message.content == [] and raw[0].message.stop_reason is None
    assert any(one.type == "input_json" for one in events)


def test_why_it_ended(ai: anthropic.Anthropic) -> None:
    cut = ai.messages.create(**{**asked("abcdef"), "max_tokens": 3})
    assert (shape(cut), cut.stop_reason) == ([("text", "abc")], "max_tokens")
    stopped = ai.messages.create(**asked("abcdef", stop_sequences=["x", "de"]))
    assert (shape(stopped), stopped.stop_reason, stopped.stop_sequence) == (
        [("text", "abc")],
        "stop_sequence",
        "de",
    )
    full = ai.messages.create(**{**asked("abc", extra_body={"ignore_eos": True}), "max_tokens": 20_000})
    assert full.stop_reason == "model_context_window_exceeded"
    broken = ai.messages.create(**{**asked(CALLS, tools=TOOLS), "max_tokens": 40})
    assert broken.stop_reason == "max_tokens" and not [one for one in broken.content if one.type == "tool_use"]


def test_a_loop_of_calls(ai: anthropic.Anthropic) -> None:
    """What an agent does: the calls go back with their results, which the template sees as messages of tools."""
    first = ai.messages.create(**asked(f"<think>hm</think>{CALLS}", tools=TOOLS, thinking=THINKING))
    calls = [one for one in first.content if one.type == "tool_use"]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "4 \u20ac"}]},
        {"type": "tool_result", "tool_use_id": calls[1].id, "content": "no clock", "is_error": True},
        {"type": "text", "text": "show"},
    ]
    before = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": first.content}]
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    message = ai.messages.create(**asked(results, before=before, tools=TOOLS, thinking=THINKING, system=system))
    rendered, tools, thinks = message.content[0].text.split("@@")  # type: ignore[union-attr]
    system_message, user, assistant, *tool_messages, last = json.loads(rendered)
    assert system_message == {"role": "system", "content": "Be brief."} and user["content"] == "Weather?"
    assert [one["function"]["name"] for one in assistant["tool_calls"]] == ["get_weather", "now"]
    assert assistant["tool_calls"][0]["function"]["arguments"] == MEANT[0][1]
    assert assistant["reasoning_content"] == "hm"
    assert [one["content"] for one in tool_messages] == ["4 \u20ac", "Error: no clock"] and last["content"] == "show"
    assert json.loads(tools)[0]["function"] == {"name": "get_weather", "description": "Weather", "parameters": CITY}
    assert thinks == "True"


def test_thinking_is_off_unless_asked_for(ai: anthropic.Anthropic) -> None:
    for thinking, thinks in ((None, "False"), ({"type": "disabled"}, "False"), ({"type": "adaptive"}, "True")):
        options: dict[str, Any] = {} if thinking is None else {"thinking": thinking}
        text = ai.messages.create(**asked("show", **options)).content[0].text  # type: ignore[union-attr]
        assert text.split("@@")[2] == thinks
    kept = ai.messages.create(**asked("show", extra_body={"chat_template_kwargs": {"enable_thinking": True}}))
    assert kept.content[0].text.endswith("@@True")  # type: ignore[union-attr]


def test_tool_choice(ai: anthropic.Anthropic) -> None:
    listed = '[{"name": "now", "parameters": {}}]'
    for content, choice in ((listed, {"type": "any"}), ("{}", {"type": "tool", "name": "now"})):
        message = ai.messages.create(**asked(content, tools=TOOLS, tool_choice=choice))
        assert shape(message) == [("tool_use", "now", {})] and message.stop_reason == "tool_use"
    assert shape(ai.messages.create(**asked(CALLS, tools=TOOLS, tool_choice={"type": "none"}))) == [("text", CALLS)]
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(ai.messages.create(**asked(CALLS, tools=TOOLS, tool_choice=one)).content) == 1
    wanted: Any = {"format": {"type": "json_schema", "schema": CITY}}
    assert shape(ai.messages.create(**asked('{"city": "x"}', output_config=wanted))) == [("text", '{"city": "x"}')]


def test_an_answer_that_has_begun_goes_on(ai: anthropic.Anthropic) -> None:
    """The last message being the assistant's: the prompt ends with it, without the template's end."""
    message = ai.messages.create(
        model="fake", max_tokens=6, messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "ab"}]
    )
    assert shape(message) == [("text", "ababab")]  # the prompt is "ab", and the fake engine repeats it


def test_the_count_of_tokens(ai: anthropic.Anthropic) -> None:
    asked_so = asked("Hello \u20ac", system="Be brief.", tools=TOOLS)
    message = ai.messages.create(**asked_so)
    del asked_so["max_tokens"]
    count = ai.messages.count_tokens(**asked_so).input_tokens
    assert count == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == 10


def test_errors_have_anthropics_shape(ai: anthropic.Anthropic, writer: RunningServer) -> None:
    image: Any = [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}]
    with pytest.raises(anthropic.BadRequestError, match="'image'"):
        ai.messages.create(**asked(image))
    with pytest.raises(anthropic.NotFoundError, match="not served"):
        ai.messages.create(**{**asked("x"), "model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        ai.messages.create(**asked("x", stop_sequences=[""]))
    with pytest.raises(anthropic.InternalServerError):
        ai.messages.create(**asked("a\x01"))
    stranger = ai.with_options(api_key="wrong")
    with pytest.raises(anthropic.AuthenticationError) as caught:
        stranger.messages.create(**asked("x"))
    assert caught.value.body == {"type": "error", "error": {
        "type": "authentication_error", "message": caught.value.body["error"]["message"]}}  # type: ignore[index]  # fmt: skip
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "some"}
    with httpx.Client(base_url=writer.url, headers=headers) as client:
        assert client.post("/v1/messages?beta=true", json=asked("hi")).status_code == 200
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            refused = client.post(path, content=b"{", headers={"content-type": "application/json"})
            assert refused.status_code == 400 and refused.json()["type"] == "error"
            assert refused.json()["error"]["type"] == "invalid_request_error"
            assert refused.headers["request-id"] == refused.headers["x-request-id"]
        both = client.post("/v1/messages", json=asked("x"), headers={"authorization": "Bearer other"})
        assert both.status_code == 401 and both.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "runs no tools"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "letters"),
        ({"tools": [{"name": "a"}]}, "input_schema"),
        ({"tool_choice": {"type": "tool"}}, "a name goes"),
        ({"tool_choice": {"type": "any"}}, "tools is empty"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "less than max_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1}}, "1024"),
        ({"container": "x"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": 2**40}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"stop_sequences": ["x"] * 100}, "stop_sequences"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "text"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
        ({"cache_salt": "\n"}, "cache_salt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": 5}]}, "expected text"),
        ({"messages": [{"role": "user", "content": [5]}]}, "block"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "no tool_use"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "y"}]}]}, "input"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, "surrogate"),
    ],
    ids=str,
)  # fmt: skip
def test_refusals(writer: RunningServer, changes: dict[str, Any], words: str) -> None:
    body = json.dumps({**asked("hi"), **changes}).encode()
    with writer.client() as client:
        for stream in (b"", b'"stream": true, '):
            content = b"{" + stream + body[1:]
            answer = client.post("/v1/messages", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 400, answer.text
            assert words in answer.json()["error"]["message"] and len(answer.content) < 3000


def test_mistakes_in_tools_are_told_by_the_names_of_this_api(writer: RunningServer) -> None:
    with writer.client() as client:
        for tool, place in (
            ({"name": "a b", "input_schema": {}}, "tools[0].name"),
            ({"name": "f", "input_schema": {"type": 5}}, "tools[0].input_schema"),
        ):
            error = client.post("/v1/messages", json={**asked("hi"), "tools": [tool]}).json()["error"]
            assert error["message"].startswith(f"{place} is ")


def test_an_error_in_the_middle_of_a_stream(ai: anthropic.Anthropic, writer: RunningServer) -> None:
    endless = asked("abc", extra_body={"ignore_eos": True}, stream=True)
    with pytest.raises(anthropic.APIStatusError, match="again"):
        for place, _ in enumerate(ai.messages.create(**endless)):
            if place == 3:
                psutil.Process(writer.engine_pid()).kill()
    writer.wait_healthy()


def test_the_runner_of_tools(ai: anthropic.Anthropic) -> None:
    """The client asks for a thread first, and sends the messages themselves where it hears that there is none."""
    towns: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather.

        Args:
            city: Where.
        """
        towns.append(city)
        return "sunny"

    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    first, last = list(ai.beta.messages.tool_runner(**asked(call), tools=[get_weather]))
    assert towns == ["Oslo"] and first.stop_reason == "tool_use" and last.stop_reason == "end_turn"
    (plain,) = list(ai.beta.messages.tool_runner(**asked("abc"), tools=[]))
    assert [block.text for block in plain.content if block.type == "text"] == ["abc"]
    with pytest.raises(anthropic.BadRequestError) as refused:
        ai.messages.count_tokens(model="fake", messages=[{"role": "user", "content": "abc"}],
                                 extra_body={"thread": {"type": "create"}})  # fmt: skip
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_pings_where_it_is_silent() -> None:
    import asyncio
    from collections.abc import AsyncIterator

    from tenon_core.serving.anthropic.message_events import PING, with_pings

    closed = []

    async def slow() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            await asyncio.sleep(0.25)
            yield b"b"
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def first(count: int) -> list[bytes]:
        found: list[bytes] = []
        source = with_pings(slow(), 0.1)
        async for piece in source:
            found.append(piece)
            if len(found) == count:
                break
        await source.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(first(5)) == [b"a", PING, PING, b"b", PING] and closed == [True]
