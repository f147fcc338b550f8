"""A conversation's turns as chat templates expect them, where OpenAI's clients write them otherwise.

Arguments of earlier tool calls arrive as JSON text: most templates want the map, a few the text. A tool's answer names
its call by id, some templates want the tool's name. `developer` is `system` to a template that does not know it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tenon_core.loading.strict_json import loads_strict
from tenon_platforms.errors import RequestError

MAX_CALLS = 512  # in one message
MAX_DEPTH, MAX_DIGITS = 32, 64
_TEXT_ARGUMENTS = re.compile(r"arguments['\"]?\]?\s*\+")  # joined with text, as in DeepSeek's templates
_REASONING = ("reasoning_content", "reasoning")


def prepared(messages: Sequence[Mapping[str, Any]], template: str) -> list[dict[str, Any]]:
    """The messages for a template of this source. Raises `RequestError` for tool calls that are none."""
    names: dict[str, str] = {}  # of tools, by call id
    wants_text = _TEXT_ARGUMENTS.search(template) is not None
    found = []
    for place, message in enumerate(messages):
        one = {key: value for key, value in message.items() if value is not None or key == "content"}
        if one.get("role") == "developer" and "developer" not in template:
            one["role"] = "system"
        if "tool_calls" in one:
            calls = _calls(f"messages[{place}].tool_calls", one.pop("tool_calls"), wants_text=wants_text)
            names.update({call["id"]: call["function"]["name"] for call in calls if isinstance(call.get("id"), str)})
            if calls:
                one["tool_calls"] = calls
        identity = one.get("tool_call_id")
        if one.get("role") == "tool" and "name" not in one and isinstance(identity, str) and identity in names:
            one["name"] = names[identity]
        thought = next((one[key] for key in _REASONING if isinstance(one.get(key), str)), None)
        if thought is not None:
            one.update(dict.fromkeys(_REASONING, thought))
        found.append(one)
    return found


def _calls(where: str, calls: Any, *, wants_text: bool) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise _refusal(f"{where} is {calls!r:.80}: expected a list of at most {MAX_CALLS} calls")
    return [_call(f"{where}[{place}]", call, wants_text=wants_text) for place, call in enumerate(calls)]


def _call(where: str, call: Any, *, wants_text: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _refusal(f'{where} is {call!r:.80}: expected {{"id", "type", "function": {{"name", "arguments"}}}}')
    given = function.get("arguments")
    arguments = arguments_of(f"{where}.function.arguments", given)
    if wants_text:
        arguments = given if isinstance(given, str) and given.strip() else json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def arguments_of(where: str, given: Any) -> Any:
    """A map, of the JSON text of one; nothing is an empty one. Raises `RequestError`."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    found = given
    if isinstance(given, str):
        try:
            found = loads_strict(given, max_depth=MAX_DEPTH, max_digits=MAX_DIGITS)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, Mapping):
        raise _refusal(f"{where} is {given!r:.80}: expected the JSON text of an object")
    return dict(found)


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="messages")
