"""Turns as templates want them, and tools as clients may send them."""

from __future__ import annotations

from typing import Any

import pytest

from tenon_core.client.tool_definitions import checked_tools
from tenon_core.client.turns import prepared
from tenon_platforms.errors import RequestError

pytestmark = pytest.mark.unit
MAPS = "{% for call in message.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}"
TEXTS = "{{ tool['function']['name'] + '<sep>' + tool['function']['arguments'] + '<end>' }}"


def calls_of(arguments: Any, template: str = MAPS) -> Any:
    call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
    (message,) = prepared([{"role": "assistant", "content": None, "tool_calls": [call]}], template)
    assert message["content"] is None
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("given", "as_map", "as_text"),
    [
        ('{"a": [1, "\u20ac"]}', {"a": [1, "\u20ac"]}, '{"a": [1, "\u20ac"]}'),
        ({"a": 1}, {"a": 1}, '{"a": 1}'),
        ("", {}, "{}"),
        (None, {}, "{}"),
    ],
)
def test_arguments_are_what_the_template_takes(given: Any, as_map: Any, as_text: str) -> None:
    assert calls_of(given) == as_map
    assert calls_of(given, TEXTS) == as_text


@pytest.mark.parametrize("given", ["{", "[1]", "3", 7, '{"a": NaN}', "[" * 40 + "]" * 40])
def test_arguments_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]\.tool_calls\[0\]\.function\.arguments") as caught:
        calls_of(given)
    assert caught.value.param == "messages"


def test_developer_is_system_to_a_template_that_does_not_know_it() -> None:
    message = {"role": "developer", "content": "x"}
    assert prepared([message], MAPS) == [{"role": "system", "content": "x"}]
    assert prepared([message], "{% if role == 'developer' %}") == [message]


def test_what_clients_send_without_meaning_is_left_out() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": [], "refusal": None, "audio": None}
    assert prepared([message], MAPS) == [{"role": "assistant", "content": "x"}]


def test_a_tool_is_named_by_the_call_it_answers() -> None:
    call = {"id": "c1", "function": {"name": "f"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "content": "3", "name": "own"},
    ]
    assert [one.get("name") for one in prepared(turns, MAPS)[1:]] == ["f", None, "own"]


def test_tools() -> None:
    schema = {"type": "object", "properties": {"a": True, "b": {"type": "string"}}, "required": ["b"]}
    tools = [
        {"type": "function", "function": {"name": "mcp.server/tool-1", "parameters": schema, "strict": True}},
        {"type": "function", "function": {"name": "bare"}},
    ]
    assert checked_tools(tools) == {"mcp.server/tool-1": schema, "bare": {}}
    wrong: list[dict[str, Any]] = [{"name": ""}, {"name": 3}, {"name": "a", "description": 3}]
    wrong += [{"name": "a", "parameters": one} for one in ({"type": "array"}, {"required": "b"}, {"required": [1]})]
    for function in wrong:
        with pytest.raises(RequestError) as caught:
            checked_tools([{"type": "function", "function": function}])
        assert caught.value.param == "tools"
    for tool in (3, {}, {"type": "web_search"}, {"function": {"name": "a"}}):
        with pytest.raises(RequestError, match="expected"):
            checked_tools([tool])
