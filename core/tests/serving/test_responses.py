"""The Responses API through the official client: whole, streamed, chained, stored, cancelled, and what is refused.

The fake engine repeats the prompt, and this template renders the last message as the prompt: so a test says what the
model answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest
from fake_model import model_folder
from running_server import KEY, RunningServer, healthy_server
from spoken_calls import ANSWER, CALLS, MEANT, TEMPLATE

pytestmark = pytest.mark.e2e
OTHER = "another-key-of-somebody"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "description": "Weather", "parameters": CITY},
    {"type": "function", "name": "now"},
]


@pytest.fixture(scope="module")
def responder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("responses") / "qwen"
    with healthy_server(
        model_folder(path, template=TEMPLATE), path / "server.log", api_key=[KEY, OTHER], max_stored_responses=20,
        stored_responses_bytes=200_000,
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
def ai(responder: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{responder.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def shape(response: Any) -> list[Any]:
    """The output without ids."""
    found: list[Any] = []
    for item in response.output:
        if item.type == "function_call":
            found.append((item.type, item.name, json.loads(item.arguments), item.status))
        else:
            found.append((item.type, "".join(part.text for part in item.content), item.status))
    return found


MEANT_OUTPUT = [
    ("reasoning", "Which city \u20ac?", "completed"),
    ("message", "I look it up.", "completed"),
    *(("function_call", name, arguments, "completed") for name, arguments in MEANT),
]


def test_text(ai: openai.OpenAI) -> None:
    response = ai.responses.create(model="fake", input="Hello \u20ac", metadata={"a": "b"}, temperature=0.5, user="me")
    assert response.output_text == "Hello \u20ac" and response.status == "completed" and response.error is None
    assert response.id.startswith("resp_") and response.output[0].id is not None
    assert (response.metadata, response.temperature, response.user) == ({"a": "b"}, 0.5, "me")
    usage = response.usage
    assert usage is not None and usage.output_tokens == len("Hello \u20ac".encode()) + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_thoughts_text_and_calls_are_items_in_their_order(ai: openai.OpenAI) -> None:
    response = ai.responses.create(model="fake", input=ANSWER, tools=TOOLS)
    assert shape(response) == MEANT_OUTPUT
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len("Which city \u20ac?".encode())
    ids = [item.id for item in response.output]
    assert len(set(ids)) == 4 and [one.partition("_")[0] for one in ids if one] == ["rs", "msg", "fc", "fc"]


def test_a_stream_says_the_same(ai: openai.OpenAI) -> None:
    """By the client's own accumulator, and event by event: numbers without a gap, every item opened and closed."""
    with ai.responses.stream(model="fake", input=ANSWER, tools=TOOLS) as stream:
        events: list[Any] = list(stream)
        final = stream.get_final_response()
    assert shape(final) == MEANT_OUTPUT
    assert [one.sequence_number for one in events] == list(range(len(events)))
    kinds = [one.type for one in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    collapsed = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind][2:-1]
    part = lambda name: [  # noqa: E731
        "response.output_item.added", "response.content_part.added", f"response.{name}.delta", f"response.{name}.done",
        "response.content_part.done", "response.output_item.done",
    ]  # fmt: skip
    call = [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip
    assert collapsed == [*part("reasoning_text"), *part("output_text"), *call, *call]
    text = "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert text == "I look it up."
    opened = {one.item.id: one.output_index for one in events if one.type == "response.output_item.added"}
    closed = {one.item.id: one.output_index for one in events if one.type == "response.output_item.done"}
    assert opened == closed and list(opened.values()) == [0, 1, 2, 3]
    assert events[0].response.id == final.id and events[0].response.status == "in_progress"
    assert ai.responses.retrieve(final.id).output == ai.responses.retrieve(final.id).output
    assert shape(ai.responses.retrieve(final.id)) == MEANT_OUTPUT


def test_logprobs_belong_to_the_text(ai: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "fake", "input": "<think>hm</think>abc", "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }  # fmt: skip
    response = ai.responses.create(**asked)
    (message,) = [item for item in response.output if item.type == "message"]
    logprobs = message.content[0].logprobs  # type: ignore[union-attr]
    assert logprobs is not None and "".join(one.token for one in logprobs) == "abc"
    assert all(len(one.top_logprobs) == 2 for one in logprobs)
    streamed = [one for one in ai.responses.create(**asked, stream=True) if one.type == "response.output_text.delta"]
    assert "".join(position.token for one in streamed for position in one.logprobs) == "abc"
    plain = ai.responses.create(model="fake", input="abc")
    assert plain.output[0].content[0].logprobs == []  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("a" + " " * 700 + "b\n\nc", None),
        ("Hi  \n\n \n", None),
        (" \n" * 200, None),
        ("<think> hm </think>\n\n" + " " * 300 + "\u20ac 5 \U0001f600 \n", "\u20ac 5 \U0001f600 \n"),
        ("ab <think>c</think> d ", None),
        ("<tool_call>no call  " + " " * 300, None),
        ("a b  <tool_call>x</tool_call> c ", None),
        ("one ST", None),  # which may become STOP
        ("one STOP", "one "),
    ],
)  # fmt: skip
def test_every_token_of_the_text_has_its_logprob(ai: openai.OpenAI, said: str, text: str | None) -> None:
    """Whatever was held back, and nothing else: neither marks nor the end."""
    asked: dict[str, Any] = {
        "model": "fake", "input": said, "tools": TOOLS, "include": ["message.output_text.logprobs"],
        "extra_body": {"stop": ["STOP"]},
    }  # fmt: skip
    response = ai.responses.create(**asked)
    parts = [part for item in response.output if item.type == "message" for part in item.content]
    assert "".join(part.text for part in parts) == (said if text is None else text)  # type: ignore[union-attr]
    logprobs = [one for part in parts for one in part.logprobs or ()]  # type: ignore[union-attr]
    assert bytes(byte for one in logprobs for byte in one.bytes) == (said if text is None else text).encode()
    assert len(logprobs) == len((said if text is None else text).encode())  # a token a byte
    deltas = [one for one in ai.responses.create(**asked, stream=True) if one.type == "response.output_text.delta"]
    assert [one.token for delta in deltas for one in delta.logprobs] == [one.token for one in logprobs]


def test_cut_off_by_its_length(ai: openai.OpenAI) -> None:
    response = ai.responses.create(model="fake", input="abcdef", max_output_tokens=3)
    assert response.status == "incomplete" and response.output_text == "abc"
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"  # type: ignore[union-attr]
    events = list(ai.responses.create(model="fake", input="abcdef", max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"


def test_a_loop_of_calls(ai: openai.OpenAI) -> None:
    """What an agent does: calls, their outputs by previous_response_id, and the same with all items sent."""
    first = ai.responses.create(model="fake", input=CALLS, tools=TOOLS, instructions="Be brief.")
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": one.call_id, "output": f"out {place}"}
        for place, one in enumerate(first.output)
        if one.type == "function_call"
    ]
    asked: list[Any] = [*outputs, {"role": "user", "content": "show"}]
    chained = ai.responses.create(model="fake", previous_response_id=first.id, input=asked, tools=TOOLS)
    messages, tools, _ = chained.output_text.split("@@")
    rendered = json.loads(messages)
    assert [one["role"] for one in rendered] == ["user", "assistant", "tool", "tool", "user"]  # no instructions kept
    assert [one["function"]["name"] for one in rendered[1]["tool_calls"]] == ["get_weather", "now"]
    assert [one["name"] for one in rendered[2:4]] == ["get_weather", "now"] and rendered[3]["content"] == "out 1"
    assert json.loads(tools)[0]["function"] == {"name": "get_weather", "description": "Weather", "parameters": CITY}
    sent: list[Any] = [{"role": "user", "content": CALLS}, *[one.model_dump() for one in first.output], *asked]
    assert ai.responses.create(model="fake", input=sent, tools=TOOLS, store=False).output_text == chained.output_text
    references: list[Any] = [{"type": "item_reference", "id": one.id} for one in first.output]
    referred = ai.responses.create(
        model="fake", input=[{"role": "user", "content": CALLS}, *references, *asked], tools=TOOLS
    )
    assert referred.output_text == chained.output_text


def test_messages_of_every_form(ai: openai.OpenAI) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "In German."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"role": "user", "content": [{"type": "input_text", "text": "show"}]},
    ]
    text = ai.responses.create(model="fake", input=items, instructions="Be brief.").output_text
    system, assistant, user = json.loads(text.split("@@")[0])
    assert system == {"role": "system", "content": "Be brief.\n\nIn German."} and user["content"] == "show"
    assert assistant["content"] == "a" and assistant["reasoning_content"] == "hm"


def test_tool_choice_and_formats(ai: openai.OpenAI) -> None:
    named: Any = {"type": "function", "name": "now"}
    forced = ai.responses.create(model="fake", input="{}", tools=TOOLS, tool_choice=named)
    assert shape(forced) == [("function_call", "now", {}, "completed")] and forced.tool_choice is not None
    listed = '[{"name": "now", "parameters": {}}]'
    required = ai.responses.create(model="fake", input=listed, tools=TOOLS, tool_choice="required")
    assert shape(required) == [("function_call", "now", {}, "completed")]
    assert ai.responses.create(model="fake", input=CALLS, tools=TOOLS, tool_choice="none").output_text == CALLS
    one = ai.responses.create(model="fake", input=CALLS, tools=TOOLS, parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["function_call"]
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    assert shape(ai.responses.create(model="fake", input=listed, tools=TOOLS, tool_choice=allowed)) == shape(required)
    schema: Any = {"format": {"type": "json_schema", "name": "x", "schema": CITY, "strict": True}}
    answer = ai.responses.create(model="fake", input='{"city": "Oslo"}', text=schema)
    assert json.loads(answer.output_text) == {"city": "Oslo"}
    assert answer.text is not None and answer.text.format is not None and answer.text.format.type == "json_schema"
    assert ai.responses.create(model="fake", input="{}", text={"format": {"type": "json_object"}}).output_text == "{}"


def test_stored_and_forgotten(ai: openai.OpenAI, responder: RunningServer) -> None:
    response = ai.responses.create(model="fake", input=["a", "b", "c"] and "abc")
    again = ai.responses.retrieve(response.id)
    assert again.output == response.output and again.usage == response.usage
    items = ai.responses.input_items.list(response.id, order="asc")
    assert [one.content[0].text for one in items.data] == ["abc"]  # type: ignore[union-attr]
    with openai.OpenAI(base_url=f"{responder.url}/v1", api_key=OTHER, max_retries=0) as other:
        for call in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(response.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.input_items.list(response.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.create(model="fake", input="x", previous_response_id=response.id)
        with pytest.raises(openai.BadRequestError, match="item"):
            reference: Any = [{"type": "item_reference", "id": response.output[0].id}]
            other.responses.create(model="fake", input=reference)
        mine = other.responses.create(model="fake", input="mine")
        for _ in range(30):
            last = ai.responses.create(model="fake", input="x")
        assert other.responses.retrieve(mine.id).output_text == "mine"  # others' do not displace it
    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(response.id)  # 30 came after it, 20 are kept
    ai.responses.delete(last.id)
    with pytest.raises(openai.NotFoundError) as caught:
        ai.responses.create(model="fake", input="x", previous_response_id=last.id)
    assert caught.value.param == "previous_response_id"
    unstored = ai.responses.create(model="fake", input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(unstored.id)


def test_tokens_of_a_request_that_is_not_run(ai: openai.OpenAI) -> None:
    counted = ai.responses.input_tokens.count(model="fake", input="abc", tools=TOOLS)  # type: ignore[arg-type]
    response = ai.responses.create(model="fake", input="abc", tools=TOOLS)
    assert response.usage is not None and counted.input_tokens == response.usage.input_tokens > 3
    assert counted.object == "response.input_tokens"
    with pytest.raises(openai.NotFoundError, match="compacts no conversations"):
        ai.responses.compact(model="fake", input="abc")


def test_items_have_ids_of_their_own(ai: openai.OpenAI) -> None:
    """Also where a client sends one twice: pages end."""
    twice: list[Any] = [{"id": "msg_1", "role": "user", "content": text} for text in "abc"]
    response = ai.responses.create(model="fake", input=twice)
    again = ai.responses.create(model="fake", input=twice, previous_response_id=response.id)
    items = list(ai.responses.input_items.list(again.id, limit=1, order="asc"))
    assert [one.content[0].text for one in items] == [*"abc", "c", *"abc"]  # type: ignore[union-attr]
    assert len({one.id for one in items}) == 7 and items[0].id == "msg_1"


@pytest.mark.parametrize(
    ("changes", "place", "param"),
    [
        ({"text": {"verbosity": "low"}}, "text.verbosity", "text.verbosity"),
        ({"tools": [{"type": "function", "name": "no name"}]}, "tools[0].name", "tools"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": 5}}]}, "tools[0].parameters", "tools"),
        (
            {"input": [{"role": "user", "content": "a"},
                       {"type": "function_call", "call_id": "c", "name": "f", "arguments": "not json"}]},
            "input[1].arguments", "input",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_are_told_by_the_names_of_this_api(
    responder: RunningServer, changes: dict[str, Any], place: str, param: str
) -> None:
    with responder.client() as client:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            error = client.post(path, json={"input": "x", **changes}).json()["error"]
            assert error["message"].startswith(f"{place} is ") and error["param"] == param


def test_pages_of_input_items(ai: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": str(place)} for place in range(25)]
    response = ai.responses.create(model="fake", input=items)
    for order in ("asc", "desc"):
        page = ai.responses.input_items.list(response.id, limit=10, order=order)  # type: ignore[arg-type]
        texts = [one.content[0].text for one in page]  # type: ignore[union-attr]
        assert sorted(map(int, texts)) == list(range(25)) and (texts[0] == "0") == (order == "asc")


def test_a_larger_conversation_than_fits_is_answered_and_not_kept(ai: openai.OpenAI) -> None:
    response = ai.responses.create(model="fake", input=[
        {"role": "user", "content": "x" * 300_000}, {"role": "user", "content": "ab"}])  # fmt: skip
    assert response.output_text == "ab" and response.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(response.id)


def test_in_the_background(ai: openai.OpenAI) -> None:
    response = ai.responses.create(model="fake", input="abc" * 20, background=True)
    assert response.status == "in_progress" and response.background
    deadline = time.monotonic() + 20
    while (response := ai.responses.retrieve(response.id)).status == "in_progress":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert response.status == "completed" and response.output_text == "abc" * 20


ENDLESS: dict[str, Any] = {"extra_body": {"ignore_eos": True}, "max_output_tokens": 3000, "input": "abc"}


def test_cancelled(ai: openai.OpenAI) -> None:
    response = ai.responses.create(model="fake", background=True, **ENDLESS)
    time.sleep(0.2)
    cancelled = ai.responses.cancel(response.id)
    assert [one.status for one in cancelled.output] == ["incomplete"]  # type: ignore[union-attr]
    count = cancelled.usage.output_tokens if cancelled.usage is not None else 0
    assert count > 0 and len(cancelled.output_text) == count - count // 4  # the template's end has no text
    assert ai.responses.retrieve(response.id).output == cancelled.output
    assert cancelled.status == "cancelled" and ai.responses.retrieve(response.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="has ended"):
        ai.responses.cancel(response.id)
    thinking = ai.responses.create(model="fake", background=True, **{**ENDLESS, "input": "<think>abc"})
    time.sleep(0.2)
    thought = ai.responses.cancel(thinking.id)
    assert thought.usage is not None and thought.output[0].type == "reasoning"
    assert thought.usage.output_tokens_details.reasoning_tokens == len(thought.output[0].content[0].text)  # type: ignore[index]
    with pytest.raises(openai.BadRequestError, match="has not ended"):
        ai.responses.create(model="fake", input="x", previous_response_id=response.id)
    with ai.responses.create(model="fake", stream=True, **ENDLESS) as stream:
        for event in stream:
            if event.type == "response.created":
                identity = event.response.id
            if event.type == "response.content_part.added":
                ai.responses.cancel(identity)
        assert event.type == "response.incomplete" and event.response.status == "cancelled"
        assert [one.status for one in event.response.output] == ["incomplete"]  # type: ignore[union-attr]
    running = ai.responses.create(model="fake", background=True, **ENDLESS)
    ai.responses.delete(running.id)
    with ai.responses.create(model="fake", stream=True, **ENDLESS) as left:
        identity = next(iter(left)).response.id  # type: ignore[union-attr]
    deadline = time.monotonic() + 20
    while ai.responses.retrieve(identity).status == "in_progress":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert ai.responses.retrieve(identity).status == "cancelled"  # the client went away


def test_too_many_in_the_background(ai: openai.OpenAI) -> None:
    running = [ai.responses.create(model="fake", background=True, **ENDLESS) for _ in range(10)]
    with pytest.raises(openai.RateLimitError, match="still run"):
        ai.responses.create(model="fake", background=True, **ENDLESS)
    for one in running:
        ai.responses.cancel(one.id)
    assert ai.responses.create(model="fake", input="a").output_text == "a"


def test_a_failed_step(ai: openai.OpenAI, responder: RunningServer) -> None:
    """Before the first event it has its own status; later the last event tells it."""
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError):
            ai.responses.create(model="fake", input="ab\x01", stream=stream)
    with ai.responses.create(model="fake", stream=True, **ENDLESS) as stream:
        for event in stream:
            if event.type == "response.in_progress":
                psutil.Process(responder.engine_pid()).kill()
        assert event.type == "response.failed" and event.response.error is not None
        assert event.response.error.code == "server_error" and "again" in event.response.error.message
    responder.wait_healthy()
    stored = ai.responses.retrieve(event.response.id)
    assert stored.status == "failed" and [one.status for one in stored.output] == ["incomplete"]  # type: ignore[union-attr]
