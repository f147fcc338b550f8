"""Bodies made to cost much or to break an answer: lists of wrong entries, crowds of keys, texts that cannot be written.

Each is refused for its first mistake, in time and memory that do not grow with the number of mistakes.
"""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
from starlette.types import Message

from tenon_core.serving import formats, pooling_fields, protocol
from tenon_core.serving.anthropic import message_fields
from tenon_core.serving.anthropic.message_content import as_messages
from tenon_core.serving.body import MAX_OPENED, parse_object
from tenon_core.serving.closed import MAX_FIELDS, Fields
from tenon_core.serving.errors import HttpError
from tenon_core.serving.openai import response_fields, response_items
from tenon_core.serving.sse import stream_response
from tenon_platforms.errors import RequestError

USER = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 2},
    "/v1/responses": {"input": [{"role": "user", "content": "a"}], "max_output_tokens": 2},
    "/v1/messages": {"messages": USER, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": USER},
    "/tokenize": {"prompt": "a"},
    "/v1/embeddings": {"input": "a"},
    "/rerank": {"query": "a", "documents": ["b"]},
}
HALF = "\ud800"
ENTRIES = 300_000


def models(of: type[Fields] = Fields) -> Iterator[type[Fields]]:
    for one in of.__subclasses__():
        yield one
        yield from models(one)


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value
        for key, one in value.items():
            if key != "metadata":
                yield from schemas(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from schemas(one)


def test_no_list_of_any_model_collects_its_mistakes() -> None:
    assert {formats, pooling_fields, message_fields, response_fields}  # imported, so that their models are known
    found = list(models())
    assert protocol.CompletionFields in found and message_fields.MessageFields in found and len(found) > 20
    for model in found:
        for schema in schemas(model.__pydantic_core_schema__):
            if schema["type"] == "list":
                assert schema.get("fail_fast") and schema.get("max_length"), (model.__name__, schema)
            if schema["type"] == "dict":  # of anything, or counted before it is read
                assert schema.get("values_schema", {}).get("type", "any") == "any" or model in COUNTED, model.__name__


COUNTED = {one for one in models() if {"metadata", "logit_bias"} & set(one.model_fields)}


@pytest.mark.parametrize("name", ["stop", "logit_bias", "metadata", "response_format", "prompt", "stream_options"])
@pytest.mark.parametrize("shape", ["numbers", "lists", "keys"])
def test_many_mistakes_cost_what_one_does(name: str, shape: str) -> None:
    wrong: Any = {
        "numbers": [1.5] * ENTRIES,
        "lists": [[None]] * ENTRIES,
        "keys": {f"k{place}": None for place in range(ENTRIES)},
    }[shape]
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as caught:
            protocol.parse(protocol.CompletionFields, {"prompt": "a", name: wrong})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.param == name and len(caught.value.message) < 300
    assert peak < 16 * 2**20, f"{peak} bytes were taken to say no"  # a line for each mistake would take hundreds


def test_a_crowd_of_fields() -> None:
    with pytest.raises(RequestError, match=f"at most {MAX_FIELDS}"):
        protocol.parse(protocol.CompletionFields, {f"k{place}": 1 for place in range(ENTRIES)})


def test_lists_and_objects_are_counted_before_they_are_made() -> None:
    fits = b'{"a": [' + b"[]," * (MAX_OPENED - 3) + b"[]]}"
    assert len(parse_object(fits)["a"]) == MAX_OPENED - 2
    with pytest.raises(HttpError, match="opening brackets"):
        parse_object(fits.replace(b"[[]", b"[[],[]", 1))


def test_a_text_of_many_pieces_is_copied_once() -> None:
    """4096 pieces of 4 KB: joined one by one they would be copied 32 GB in all."""
    piece = "a" * 4096
    begun = time.process_time()
    blocks = [{"type": "text", "text": piece}] * 4096
    assert as_messages([{"role": "user", "content": blocks}], None)[0]["content"] == "\n".join([piece] * 4096)
    users = [{"role": "user", "content": piece}] * 4096
    assert as_messages(users, None) == [{"role": "user", "content": "\n\n".join([piece] * 4096)}]
    items = response_items.checked_items([{"role": "system", "content": piece}] * 4096)
    found = response_items.as_messages(items, "b")
    assert found == [{"role": "system", "content": "\n\n".join(["b", *[piece] * 4096])}]
    assert time.process_time() - begun < 2.5


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, str):
        yield path
    elif isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts(one, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


LABELS: dict[str, Any] = {
    "/v1/completions": {"stop": "z", "user": "u", "metadata": {"a": "b"}, "request_id": "r", "cache_salt": "s"},
    "/v1/chat/completions": {
        "stop": ["z"], "metadata": {"a": "b"}, "chat_template_kwargs": {"a": "b"},
        "messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}],
    },
    "/v1/responses": {
        "metadata": {"a": "b"}, "instructions": "i", "user": "u", "stop": "z", "input": [
            {"role": "user", "content": "a", "id": "i", "status": "s"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}], "encrypted_content": "e"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"}],
    },
    "/v1/messages": {"stop_sequences": ["z"], "system": "s", "metadata": {"user_id": "u"}},
    "/v1/messages/count_tokens": {"system": [{"type": "text", "text": "s"}]},
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
def test_half_a_surrogate_pair_anywhere(client: httpx.Client, path: str) -> None:
    body = {**BODIES[path], **LABELS.get(path, {})}
    places = list(texts(body))
    assert places
    for place in places:
        content = json.dumps(replaced(body, place, HALF))
        assert r"\ud800" in content
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and "surrogate" in answer.text, (place, answer.text)
    in_key = json.dumps({**body, "metadata": {HALF: "a"}})
    answer = client.post(path, content=in_key, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "surrogate" in answer.text


def test_whole_pairs_are_text(client: httpx.Client) -> None:
    content = json.dumps({"prompt": "\U0001f600"})
    assert r"\ud83d\ude00" in content
    answer = client.post("/tokenize", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 200 and answer.json()["count"] > 0


def test_work_ends_though_no_piece_of_its_stream_was_asked_for() -> None:
    """The headers wait for room to be sent, and the client leaves."""
    begun, released = [], []

    async def pieces() -> Any:
        begun.append(True)
        yield b"x"

    async def never(message: Message) -> None:
        await asyncio.Event().wait()

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def main() -> None:
        response = stream_response(pieces(), release=lambda: released.append(True))
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await asyncio.wait_for(response(scope, gone, never), 10)

    asyncio.run(main())
    assert released == [True] and not begun


def test_prompts_that_are_ids_or_texts() -> None:
    def prompt(value: Any) -> Any:
        return protocol.parse(protocol.CompletionFields, {"prompt": value}).prompt

    for right in ("a", ["a", "b"], [1, 2**31 - 1], [[1], [2, 3]], []):
        assert prompt(right) == right
    for wrong in ([True], [-1], [2**31], [1.0], ["a", 1], [1, "a"], [[1], [True]], [[1], "a"], [[["a"]]], None, 1):
        with pytest.raises(RequestError):
            prompt(wrong)
    assert get_args(protocol.Prompt)
