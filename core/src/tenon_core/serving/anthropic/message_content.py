"""Messages of Anthropic's API to messages of a chat: blocks of text, thoughts, calls and their results.

A user's message with results of calls becomes messages of role `tool`, in their place. Two neighbours of one role are
one turn. Blocks that need eyes, files or Anthropic's servers are refused by their type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tenon_platforms.errors import RequestError

MAX_MESSAGES = 4096
MAX_BLOCKS = 4096  # in one message
MAX_ID = 256
ROLES = ("user", "assistant", "system")
OPAQUE = "redacted_thinking"  # Anthropic's own, which nobody else can read


def as_messages(given: Sequence[Mapping[str, Any]], system: Any) -> list[dict[str, Any]]:
    """The conversation. Raises `RequestError` for a result of a call that nobody made, and for what is no text."""
    if len(given) > MAX_MESSAGES:
        raise _refusal(f"messages has {len(given)} entries: at most {MAX_MESSAGES} are allowed")
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": _texts("system", system, param="system")})
    known: set[str] = set()
    for place, one in enumerate(given):
        where, role = f"messages[{place}]", one.get("role")
        if role not in ROLES:
            raise _refusal(f"{where}.role is {role!r:.80}: expected user or assistant")
        unknown = next((name for name in one if name not in ("role", "content")), None)
        if unknown is not None:
            raise _refusal(f"{where} has {unknown!r:.80}: expected role and content")
        if role == "assistant":
            messages.append(_turn(f"{where}.content", one.get("content"), known))
        elif role == "system":
            messages.append({"role": role, "content": _texts(f"{where}.content", one.get("content"))})
        else:
            messages += _asked(f"{where}.content", one.get("content"), known)
    return _joined(messages)


def _joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of one role as one message, each text copied once however many there are."""
    turns: list[list[dict[str, Any]]] = []
    for message in messages:
        last = turns[-1][0] if turns else {}
        is_plain = not any(key in one for one in (last, message) for key in ("tool_calls", "tool_call_id"))
        if last.get("role") == message["role"] and is_plain and "reasoning_content" not in message:
            turns[-1].append(message)
        else:
            turns.append([message])
    return [{**turn[0], "content": "\n\n".join(one["content"] for one in turn if one["content"])} for turn in turns]


def _blocks(where: str, content: Any) -> list[tuple[str, str, Mapping[str, Any]]]:
    """[(where, type, block)]."""
    if isinstance(content, str):
        return [(where, "text", {"text": content})]
    if not isinstance(content, list) or len(content) > MAX_BLOCKS:
        raise _refusal(f"{where} is {content!r:.80}: expected text or a list of at most {MAX_BLOCKS} blocks")
    found = []
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(kind, str):
            raise _refusal(f"{where}[{place}] is {block!r:.80}: expected a block with a type")
        found.append((f"{where}[{place}]", kind, block))
    return found


def _texts(where: str, content: Any, *, param: str = "messages") -> str:
    """Content that may be text only, as one text."""
    return "\n".join(_text(place, kind, block, param=param) for place, kind, block in _blocks(where, content))


def _text(where: str, kind: str, block: Mapping[str, Any], *, param: str = "messages") -> str:
    if kind != "text":
        raise RequestError(
            f"{where} is a block of type {kind!r:.80}, which is not available here: this server's models read text",
            param=param,
        )
    if not isinstance(block.get("text"), str):
        raise RequestError(f"{where}.text is {block.get('text')!r:.80}: expected text", param=param)
    return str(block["text"])


def _asked(where: str, content: Any, known: set[str]) -> list[dict[str, Any]]:
    """A user's message: results of calls and text."""
    found: list[dict[str, Any]] = []
    for place, kind, block in _blocks(where, content):
        if kind == "tool_result":
            found.append(_result(place, block, known))
            continue
        text = _text(place, kind, block)
        if not found or found[-1]["role"] != "user":
            found.append({"role": "user", "content": []})
        found[-1]["content"].append(text)
    for one in found:
        if one["role"] == "user":
            one["content"] = "\n".join(one["content"])
    return found or [{"role": "user", "content": ""}]


def _result(where: str, block: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    identity = block.get("tool_use_id")
    if not isinstance(identity, str) or identity not in known:
        raise _refusal(f"{where}.tool_use_id is {identity!r:.80}: there is no tool_use of that id before it")
    content = block.get("content")
    text = "" if content is None else _texts(f"{where}.content", content)
    if block.get("is_error") and not text.lower().startswith("error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": identity, "content": text}


def _turn(where: str, content: Any, known: set[str]) -> dict[str, Any]:
    """A message of the assistant's."""
    texts, thoughts, calls = [], [], []
    for place, kind, block in _blocks(where, content):
        if kind == "thinking":
            if not isinstance(block.get("thinking"), str):
                raise _refusal(f"{place}.thinking is {block.get('thinking')!r:.80}: expected text")
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append(_call(place, block))
            known.add(calls[-1]["id"])
        elif kind != OPAQUE:
            texts.append(_text(place, kind, block))
    found: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        found["reasoning_content"] = "\n".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def _call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    identity, name, given = block.get("id"), block.get("name"), block.get("input")
    for field, value in (("id", identity), ("name", name)):
        if not isinstance(value, str) or not 0 < len(value) <= MAX_ID:
            raise _refusal(f"{where}.{field} is {value!r:.80}: expected a text of 1 to {MAX_ID} characters")
    if not isinstance(given, Mapping):
        raise _refusal(f"{where}.input is {given!r:.80}: expected an object")
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="messages")
