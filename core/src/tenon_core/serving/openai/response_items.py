"""Items of the Responses API to messages of a chat: what clients send, and what earlier responses left.

A thought, a message and calls that follow one another are one turn of the assistant. Items of tools that run inside
OpenAI's servers are refused by their type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenon_core.client.turns import arguments_of
from tenon_platforms.errors import RequestError

from ..answers import new_label

MAX_ITEMS = 4096
MAX_ID = 256
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
ROLES = ("user", "assistant", "system", "developer")
# What items may hold besides: what servers add to them, which says nothing to a model.
_LABELS = {"id", "type", "status", "phase", "created_by", "caller", "namespace"}
FIELDS = {
    "message": {"role", "content"} | _LABELS,
    "function_call": {"call_id", "name", "arguments", "async"} | _LABELS,
    "function_call_output": {"call_id", "output", "name"} | _LABELS,
    "reasoning": {"summary", "content", "encrypted_content"} | _LABELS,
}


def new_id(kind: str) -> str:
    """Of an item that comes without one."""
    return f"{PREFIXES[kind]}_{new_label()}"


def checked_items(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The input as items with a type and an id, references left as they are. Raises `RequestError`."""
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if len(given) > MAX_ITEMS:
        raise refusal(f"input has {len(given)} items: at most {MAX_ITEMS} are allowed")
    return [_checked(f"input[{place}]", one) for place, one in enumerate(given)]


def _checked(where: str, item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or ("message" if "role" in item else None)
    if not isinstance(kind, str):
        raise refusal(f"{where}.type is {kind!r:.80}: expected a kind of item, or a role and content")
    if kind == "item_reference":
        return {"type": kind, "id": _text(f"{where}.id", item.get("id"), MAX_ID)}
    if kind not in FIELDS:
        raise refusal(f"{where} is a {kind!r:.80}: taken are {', '.join(FIELDS)} and item_reference")
    unknown = next((name for name, value in item.items() if value is not None and name not in FIELDS[kind]), None)
    if unknown is not None:
        raise refusal(f"{where} has {unknown!r:.80}, which is no field of a {kind}")
    identity = item.get("id")
    identity = new_id(kind) if identity is None else _text(f"{where}.id", identity, MAX_ID)
    found = {"status": "completed", **{key: one for key, one in item.items() if one is not None}}
    found |= {"id": identity, "type": kind}
    _CHECKS[kind](where, found)
    return found


def _message(where: str, item: dict[str, Any]) -> None:
    if item.get("role") not in ROLES:
        raise refusal(f"{where}.role is {item.get('role')!r:.80}: expected one of {', '.join(ROLES)}")
    kind = "output_text" if item["role"] == "assistant" else "input_text"
    if isinstance(item.get("content"), str):
        item["content"] = [{"type": kind, "text": item["content"]}]
    text_of(f"{where}.content", item.get("content"))


def _call(where: str, item: dict[str, Any]) -> None:
    _text(f"{where}.call_id", item.get("call_id"), MAX_ID)
    _text(f"{where}.name", item.get("name"), MAX_ID)
    if not isinstance(item.get("arguments"), str):
        raise refusal(f"{where}.arguments is {item.get('arguments')!r:.80}: expected the JSON text of an object")
    try:
        arguments_of(f"{where}.arguments", item["arguments"])
    except RequestError as error:
        raise refusal(error.message) from None


def _output(where: str, item: dict[str, Any]) -> None:
    _text(f"{where}.call_id", item.get("call_id"), MAX_ID)
    text_of(f"{where}.output", item.get("output"))


def _thought(where: str, item: dict[str, Any]) -> None:
    _thoughts(where, item)


_CHECKS = {"message": _message, "function_call": _call, "function_call_output": _output, "reasoning": _thought}


def _text(where: str, value: Any, longest: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise refusal(f"{where} is {value!r:.80}: expected a text of 1 to {longest} characters")
    return value


def text_of(where: str, content: Any) -> str:
    """Content as one text: a text, or a list of parts that are text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refusal(f"{where} is {content!r:.80}: expected text or a list of parts")
    return "\n".join(_part(f"{where}[{place}]", part) for place, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    name = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    text = part.get(name) if name is not None else None
    if name is None:
        raise refusal(f"{where} is a part of type {kind!r:.80}: this server's models read text (input_text) only")
    if not isinstance(text, str):
        raise refusal(f"{where}.{name} is {text!r:.80}: expected text")
    return text


def _thoughts(where: str, item: Mapping[str, Any]) -> str:
    """The text of a thought: all of it, or else its summary."""
    found = []
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise refusal(f"{where}.{name} is {parts!r:.80}: expected a list of parts")
        for place, part in enumerate(parts):
            if not isinstance(part, Mapping) or part.get("type") != kind or not isinstance(part.get("text"), str):
                raise refusal(f"{where}.{name}[{place}] is {part!r:.80}: expected a {kind}")
        found.append("\n".join(part["text"] for part in parts))
    return found[0] or found[1]


def as_messages(items: Sequence[Mapping[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """Checked items as messages. instructions come first, in one message with the instructions among the items.

    Raises `RequestError` for the output of a call that nobody made.
    """
    lead = [instructions] if instructions else []
    messages: list[dict[str, Any]] = [{"role": "system"}] if instructions else []
    known: set[str] = set()
    for item in items:
        kind = item["type"]
        if kind == "message" and item["role"] != "assistant":
            text = text_of("content", item["content"])
            is_lead = item["role"] in ("system", "developer") and len(messages) == bool(lead)
            if is_lead:  # instructions that follow instructions are added to them, as templates take one at most
                lead.append(text)
            if not is_lead or not messages:
                messages.append({"role": item["role"], "content": text})
        elif kind == "function_call_output":
            identity = item["call_id"]
            if identity not in known:
                raise refusal(f"input has the output of call {identity!r:.80}, and no call of that id before it")
            messages.append({"role": "tool", "tool_call_id": identity, "content": text_of("output", item["output"])})
        else:
            turn = _turn(messages, kind)
            if kind == "message":
                turn["content"] = text_of("content", item["content"])
            elif kind == "reasoning":
                turn["reasoning_content"] = _thoughts("input", item)
            else:
                known.add(item["call_id"])
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                turn.setdefault("tool_calls", []).append(call)
    if lead:
        messages[0]["content"] = "\n\n".join(lead)
    return messages


def _turn(messages: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The assistant's turn that an item of this kind belongs to: the last message, or a new one."""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant":
        has_begun = {"reasoning": bool(last), "message": last["content"] is not None or "tool_calls" in last}
        if not has_begun.get(kind, False):
            return last
    turn: dict[str, Any] = {"role": "assistant", "content": None}
    messages.append(turn)
    return turn


def refusal(message: str) -> RequestError:
    """An error about the input."""
    return RequestError(message, param="input")
