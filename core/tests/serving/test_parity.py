"""T45: what the chat API refuses, the other message APIs refuse too, with a field's name and no 5xx; T27 and T31 there.

Cases are generated from the ceilings and the models, so that no numeric field is missed.
"""

from __future__ import annotations

import json
import re
import types
import typing
from typing import Any

import httpx
import pytest
from fake_engine import VOCAB
from running_server import RunningServer

from tenon_core.sampling.params import CEILINGS, LENGTH_CEILINGS
from tenon_core.serving.anthropic.message_fields import EXTENSIONS as MESSAGE_EXTENSIONS
from tenon_core.serving.anthropic.message_fields import MessageFields
from tenon_core.serving.openai.response_fields import EXTENSIONS as RESPONSE_EXTENSIONS
from tenon_core.serving.openai.response_fields import ResponseFields
from tenon_core.serving.protocol import ChatFields
from tenon_core.serving.response_store import ResponseStore, Stored, as_items

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "a", "max_output_tokens": 3},
    MESSAGES: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
}
NUMBERS: list[Any] = [-(2**63), -1, 2**31, 2**63, 2**64, 1e308, True, "1", [1], {"a": 1}]
RAW_NUMBERS = ["NaN", "Infinity", "-Infinity", "1" * 70, "1e999"]
KIND = {"content-type": "application/json"}
LEAK = re.compile(r"Traceback|\.py\b|/root|/tmp|site-packages|0x[0-9a-f]{6,}|correct-horse")
OF_CHAT = {"max_output_tokens": "max_tokens", "top_logprobs": "logprobs"}


def numeric(model: Any, names: typing.Iterable[str]) -> list[str]:
    hints = typing.get_type_hints(model, include_extras=True)
    return [name for name in names if name in hints and _is_number(hints[name])]


def _is_number(hint: Any) -> bool:
    kinds = set(_leaves(hint))
    return bool(kinds & {int, float}) and not kinds & {str, list, dict, bool}


def _leaves(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [leaf for one in typing.get_args(hint) for leaf in _leaves(one)]
    if typing.get_origin(hint) is typing.Annotated:
        return _leaves(typing.get_args(hint)[0])
    return [typing.get_origin(hint) or hint]


CASES = [
    *((RESPONSES, name) for name in numeric(ResponseFields, ResponseFields.model_fields)),
    *((RESPONSES, name) for name in numeric(ChatFields, RESPONSE_EXTENSIONS)),
    *((MESSAGES, name) for name in numeric(MessageFields, MessageFields.model_fields)),
    *((MESSAGES, name) for name in numeric(ChatFields, MESSAGE_EXTENSIONS)),
]


def refused(answer: httpx.Response, name: str | None = None, status: int = 400) -> None:
    assert answer.status_code == status, (answer.status_code, answer.text[:300])
    body = answer.json()
    assert body["error"]["message"] and (body.get("type") == "error") == answer.request.url.path.startswith(MESSAGES)
    assert not LEAK.search(answer.text) and len(answer.content) < 3000, answer.text
    if name is not None:
        assert name in (body["error"].get("param") or "") or name in body["error"]["message"], body


@pytest.mark.unit
def test_no_numeric_field_is_missed() -> None:
    for path in (RESPONSES, MESSAGES):
        found = {OF_CHAT.get(name, name) for where, name in CASES if where == path}
        assert set(CEILINGS) - {"n", "logprobs", "prompt_logprobs"} <= found, path
    assert {"max_tool_calls", "top_logprobs", "max_output_tokens"} <= {name for where, name in CASES}


@pytest.mark.e2e
@pytest.mark.parametrize(("path", "name"), CASES)
def test_numbers_at_and_beyond_the_edges(client: httpx.Client, path: str, name: str) -> None:
    extra = {"include": ["message.output_text.logprobs"]} if name == "top_logprobs" else {}
    least, greatest = CEILINGS.get(OF_CHAT.get(name, name), (-(2**31), 2**31 - 1))
    beyond = greatest + 1 if greatest < 2**53 else 2 * greatest + 1
    for value in [*NUMBERS, least - 1, beyond]:
        if not isinstance(value, (bool, str, list, dict)) and least <= value <= greatest and name != "max_tool_calls":
            continue
        refused(client.post(path, json={**BODIES[path], **extra, name: value}), name)
    for text in RAW_NUMBERS:
        body = json.dumps({**BODIES[path], **extra, name: "@"}).replace('"@"', text)
        refused(client.post(path, content=body, headers=KIND))


@pytest.mark.e2e
@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_lists_ids_and_labels(client: httpx.Client, path: str) -> None:
    base = BODIES[path]
    stop = "stop" if path == RESPONSES else "stop_sequences"
    for name, most in LENGTH_CEILINGS.items():
        for count in (most + 1, 10**5):
            value: Any = {"stop": ["x"] * count, "logit_bias": dict.fromkeys(map(str, range(count)), 1.0)}.get(
                name, [1] * count
            )
            shown = stop if name == "stop" else name
            refused(client.post(path, json={**base, shown: value}), shown)
    for token in (-1, VOCAB, 2**31, 2**63, True, 1.5, "x", None):
        for name in ("stop_token_ids", "allowed_token_ids"):
            refused(client.post(path, json={**base, name: [token]}), name)
        refused(client.post(path, json={**base, "logit_bias": {str(token): 1}}), "logit_bias")
    for name, value in (
        ("cache_salt", ""), ("cache_salt", "x" * 257), ("cache_salt", "a\nb"), ("chat_template", "{{ 1 }}"),
        ("chat_template_kwargs", {"tools": 1}), ("chat_template_kwargs", {"chat_template": "x"}), ("n", 2),
        ("prompt_embeds", "x"), ("kv_transfer_params", {"a": 1}), ("mm_processor_kwargs", {"a": 1}),
        ("structured_outputs", {"regex": "("}), ("structured_outputs", {"json": {"type": "no"}}),
        ("structured_outputs", {"grammar": "("}), ("no_such_field", 1), ("metadata", {str(i): "" for i in range(99)}),
        ("truncate_prompt_tokens", 0), ("tools", [{"type": "function"}] * 1000), ("tools", [5]),
    ):  # fmt: skip
        refused(client.post(path, json={**base, name: value}), None if name == "metadata" else name)


@pytest.mark.e2e
def test_conversations(client: httpx.Client) -> None:
    parts: list[Any] = [
        [{"type": "input_image", "image_url": "file:///etc/passwd"}], [{"type": "input_file", "file_id": "x"}],
        [{"type": "input_text"}], [5], 5, None, [{"type": []}], {"type": "input_text"},
    ]  # fmt: skip
    items: list[Any] = [
        *({"role": "user", "content": one} for one in parts), {"role": "x", "content": "a"}, {"type": []}, {},
        {"id": 1},
        {"type": "function_call", "call_id": "a", "name": "b"}, {"type": "function_call", "name": "b", "arguments": ""},
        {"type": "function_call", "call_id": "a", "name": "b", "arguments": "{"},
        {"type": "function_call_output", "call_id": "a", "output": "b"}, {"type": "computer_call"},
        {"type": "reasoning", "content": [{"type": "x"}]}, {"type": "reasoning", "summary": 5},
        {"type": "item_reference", "id": "msg_x"}, {"type": "item_reference"}, {"role": "user", "content": "a", "b": 1},
        {"role": "user", "content": "a", "id": "x" * 300}, {"role": "user", "content": "\udfff"},
    ]  # fmt: skip
    for item in items:
        content = json.dumps({"input": [item]})
        refused(client.post(RESPONSES, content=content, headers=KIND), "input")
    for body in (
        {}, {"input": []}, {"input": None}, {"input": 5}, {"input": ""} and {"input": ["a"]},
        {"input": [{"role": "user", "content": "a"}] * 5000}, {"input": "a", "truncation": "auto"},
        {"input": "a", "background": True, "stream": True}, {"input": "a", "background": True, "store": False},
        {"input": "a", "include": ["no"]}, {"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}},
        {"input": "a", "conversation": "c"}, {"input": "a", "prompt": {"id": "p"}}, {"input": "a", "tools": [{}]},
        {"input": "a", "tools": [{"type": "web_search"}]}, {"input": "a", "tool_choice": {"type": "mcp"}},
        {"input": "a", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}},
        {"input": "a", "tool_choice": {"type": "allowed_tools", "mode": "auto"}},
        {"input": "a", "text": {"format": {"type": "grammar"}}}, {"input": "a", "reasoning": {"effort": 5}},
        {"input": "a", "stream_options": {}}, {"input": "a", "max_output_tokens": 10_000},
    ):  # fmt: skip
        refused(client.post(RESPONSES, json=body))
    refused(client.post(RESPONSES, json={"input": "a", "previous_response_id": "resp_x"}), status=404)
    refused(client.post(RESPONSES, json={"input": "x" * 1_000_000}), "input")
    for query in ("limit=0", "limit=x", "limit=101", "order=up", "after=x"):
        made = client.post(RESPONSES, json={"input": "a"}).json()["id"]
        refused(client.get(f"{RESPONSES}/{made}/input_items?{query}"), query.partition("=")[0])
    refused(client.get(f"{RESPONSES}/{made}?stream=true"), "stream")
    for path in (f"{RESPONSES}/x", f"{RESPONSES}/..%2f..", f"{RESPONSES}/{'x' * 5000}"):
        refused(client.get(path), status=404)


@pytest.mark.e2e
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe{\x00}", b'{"a":' * 10_000 + b"1" + b"}" * 10_000])
@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens"])
def test_hostile_bodies(client: httpx.Client, path: str, body: bytes) -> None:
    refused(client.post(path, content=body, headers=KIND))
    refused(client.post(path, content=b"{}", headers={"content-type": "text/plain"}), status=415)


@pytest.mark.e2e
def test_ids_are_the_servers_own(client: httpx.Client, server: RunningServer) -> None:
    """A client's request id is a label: it never becomes, or finds, a stored response."""
    headers = {"x-request-id": "mine"}
    made = [client.post(RESPONSES, json={"input": "a"}, headers=headers).json()["id"] for _ in range(2)]
    assert len(set(made)) == 2 and not any("mine" in one for one in made)
    assert all(len(one) > 40 for one in made)  # unguessable
    refused(client.get(f"{RESPONSES}/mine"), status=404)


@pytest.mark.unit
def test_the_store_is_bounded_and_apart() -> None:
    store = ResponseStore(max_entries=5, max_bytes=20_000)

    def entry(identity: str, size: int = 10, items: int = 1) -> Stored:
        made = as_items([{"id": f"{identity}-{place}", "x": "y" * size} for place in range(items)])
        return Stored(id=identity, items=made, num_input=items, body=b"{}", is_complete=True)

    assert all(store.put("a", entry(str(place))) for place in range(5)) and store.put("b", entry("other"))
    assert store.get("a", "0") is not None  # used: the next one to go is 1
    assert store.put("a", entry("5")) and store.get("a", "1") is None and store.get("a", "0") is not None
    assert store.get("a", "other") is None and store.get("b", "0") is None
    assert store.item("a", "0-0") is not None and store.item("b", "0-0") is None and store.item("a", "1-0") is None
    assert not store.put("a", entry("huge", size=30_000)) and store.get("a", "huge") is None
    assert store.put("a", entry("large", size=15_000))
    for shelf in store._shelves.values():
        assert shelf.num_bytes == sum(one.num_bytes for one in shelf.entries.values()) <= 20_000
        assert set(shelf.items) == {identity for one in shelf.entries.values() for identity, _ in one.items}
    for place in range(10_000):
        store.put("a", entry(f"flood-{place}"))
    assert len(store._shelves["a"].entries) == 5 and store.get("b", "other") is not None
    assert store.put("a", entry("flood-9999", size=20))  # in place of itself
    for identity in list(store._shelves["a"].entries):
        assert store.remove("a", identity) is not None
    assert store._shelves["a"].num_bytes == 0 and not store._shelves["a"].items
    assert not ResponseStore(max_entries=0, max_bytes=1000).put("a", entry("x"))
