"""Feeds a parser in pieces and puts together what it tells, as a client does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from calls_as_written import SCHEMAS

from tenon_core.hookspecs import REASONING_PARSERS, TOOL_PARSERS, load_registered
from tenon_core.serving.parsers.engine import OutputParser
from tenon_core.serving.parsers.events import CONTENT, Event, TextDelta
from tenon_core.serving.parsers.formats.base import ReasoningFormat
from tenon_core.serving.parsers.registry import load_parsers


def parser(
    tools: str = "none", reasoning: str = "none", *, schemas: Any = SCHEMAS, prompt: str = "", **options: Any
) -> OutputParser:
    parsers = load_parsers(tools, reasoning, None)
    made = OutputParser(parsers.tools, parsers.reasoning, tools=schemas, prompt=prompt, **options)
    numbers = itertools.count()
    made.scan.new_id = lambda: f"id{next(numbers)}"
    return made


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    return [text[start:end] for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True)]


def together(events: Iterable[Event]) -> dict[str, Any]:
    """{"content", "reasoning", "calls": [(id, name, arguments)]}; checks what must hold of every stream."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for event in events:
        if isinstance(event, TextDelta):
            assert event.text
            found["content" if event.kind == CONTENT else "reasoning"] += event.text
        elif event.index == len(found["calls"]):
            assert event.id and event.name, "the first part of a call names it"
            found["calls"].append((event.id, event.name, event.arguments))
        else:
            assert event.index == len(found["calls"]) - 1 and event.id is None and event.name is None
            identity, name, arguments = found["calls"][-1]
            found["calls"][-1] = (identity, name, arguments + event.arguments)
    return found


def read(made: OutputParser, pieces: Iterable[str]) -> dict[str, Any]:
    events: list[Event] = []
    for piece in pieces:
        events += made.feed(piece)
    return together(events + made.finish())


__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "ReasoningFormat",
    "load_registered",
    "parser",
    "pieces_of",
    "read",
    "together",
]
