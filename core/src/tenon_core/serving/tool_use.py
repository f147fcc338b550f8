"""Which tools a chat request may use, and how its answers are read: `tools`, `tool_choice`, `parallel_tool_calls`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenon_core.client.detokenizer import TokenBytes
from tenon_core.client.tool_definitions import checked_tools
from tenon_core.sampling.rules import ThinkingLimit
from tenon_core.sampling.structured import StructuredOutputs
from tenon_platforms.errors import RequestError

from .forced_calls import any_tool, one_tool
from .parsers.engine import OutputParser
from .parsers.events import CONTENT, Event, TextDelta
from .parsers.formats.base import ToolFormat
from .parsers.registry import Parsers
from .parsers.scan import MAX_CALLS
from .protocol import ChatFields

NO_PARSER = (
    "tools are given, and this server does not know how its model writes calls: start it with --tool-call-parser NAME,"
    ' or send tool_choice "none"'
)
NO_THOUGHTS = (
    "thinking_token_budget is given, and this server does not know how its model marks thoughts: start it with"
    " --reasoning-parser NAME"
)
NOT_LET = 'this server does not let the model call tools (--no-enable-auto-tool-choice): send tool_choice "none"'
TWO_FORMS = "tool_choice {} says what the output looks like, and so does {}: give one of the two"


@dataclass(slots=True, kw_only=True)
class Reading:
    """How one request's answers are read. tools: for the template; schemas: of tools that may be called, by name."""

    parsers: Parsers
    tools: list[dict[str, Any]] | None
    schemas: Mapping[str, Mapping[str, Any]]
    max_calls: int = MAX_CALLS
    has_reasoning: bool = True  # whether the client wants it
    has_form: bool = False  # whether a grammar says what the whole answer looks like
    prompt: str = ""  # filled once it is rendered
    forced: ToolFormat | None = None  # how forced calls are written, whatever the model's habit
    structured: StructuredOutputs | None = None  # what forces them
    _made: dict[int, OutputParser] = field(default_factory=dict)

    @property
    def is_needed(self) -> bool:
        """Whether answers are more than text."""
        return (
            bool(self.schemas)
            or self.forced is not None
            or self.parsers.reasoning is not None
            or self.parsers.channels is not None
        )

    def shown_ids(self, vocabulary: TokenBytes | None) -> frozenset[int]:
        """Special tokens that the parsers look for."""
        if vocabulary is None or not self.is_needed:
            return frozenset()
        marks = [
            mark for one in (self.parsers.tools, self.parsers.reasoning) if one is not None for mark in one.marks()
        ]
        return frozenset(
            token
            for token in vocabulary.special_ids
            if (text := vocabulary.text(token)) and any(text in m for m in marks)
        )

    def thinking_limit(self, budget: int | None) -> ThinkingLimit | None:
        """What ends a thought that takes more tokens; None where nothing is thought, as an answer has a fixed form.

        Raises `RequestError` where it is not known how the model marks its thoughts.
        """
        if budget is None:
            return None
        formats = [one for one in (self.parsers.reasoning, self.parsers.channels) if one is not None]
        if not formats:
            raise RequestError(NO_THOUGHTS, param="thinking_token_budget")
        return None if self.has_form else formats[0].limit(budget, self.prompt)

    def parser(self, index: int) -> OutputParser:
        """The parser of sample `index`."""
        made = self._made.get(index)
        if made is None:
            tools = self.parsers.tools if self.schemas else self.parsers.channels
            reasoning = self.parsers.reasoning if self.forced is None else None
            made = self._made[index] = OutputParser(
                self.forced or tools, reasoning, tools=self.schemas, prompt=self.prompt, max_calls=self.max_calls
            )
        return made

    def events(self, index: int, text: str, reason: str | None) -> tuple[list[Event], str | None]:
        """(what is new of sample `index`, in order, the finish reason). reason: why the text is at its end, if so."""
        if not self.is_needed:
            return ([TextDelta(CONTENT, text)] if text else []), reason
        parser = self.parser(index)
        events = parser.feed(text)
        if reason is not None:
            events += parser.finish()
        if not self.has_reasoning:
            events = [one for one in events if not isinstance(one, TextDelta) or one.kind == CONTENT]
        return events, finish_reason(reason, parser)

    def delta(self, index: int, text: str, reason: str | None) -> tuple[dict[str, Any], str | None]:
        """(what is new as `delta` of a stream, the finish reason)."""
        events, reason = self.events(index, text, reason)
        return self._delta(events), reason

    def _delta(self, events: list[Event]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for event in events:
            if isinstance(event, TextDelta):
                if event.kind == CONTENT:
                    found["content"] = found.get("content", "") + event.text
                else:
                    text = found.get("reasoning", "") + event.text
                    found["reasoning_content"] = found["reasoning"] = text
                continue
            call: dict[str, Any] = {"index": event.index}
            function: dict[str, Any] = {"arguments": event.arguments}
            if event.id is not None:
                call |= {"id": event.id, "type": "function"}
                function = {"name": event.name, **function}
            found.setdefault("tool_calls", []).append({**call, "function": function})
        return found

    def message(self, index: int, text: str, reason: str | None) -> tuple[dict[str, Any], str | None]:
        """(content, reasoning and calls of a whole answer, the finish reason)."""
        delta, reason = self.delta(index, text, reason or "stop")
        calls: dict[int, dict[str, Any]] = {}
        for one in delta.pop("tool_calls", ()):
            known = calls.setdefault(one.pop("index"), one)
            if known is not one:
                known["function"]["arguments"] += one["function"]["arguments"]
        found = {"content": None if delta else "", **delta}
        if calls:
            found = {**found, "tool_calls": list(calls.values())}
            found["content"] = found["content"] or None
        return found, reason


def finish_reason(reason: str | None, parser: OutputParser) -> str | None:
    """An answer that ended by itself and has calls ended for them."""
    return "tool_calls" if reason == "stop" and parser.num_calls else reason


def reading_of(fields: ChatFields, parsers: Parsers, *, lets_choose: bool) -> Reading:
    """How to read this request's answers. Raises `RequestError` for tools or a choice that cannot be."""
    schemas = checked_tools(fields.tools or ())
    choice, tools = fields.tool_choice, fields.tools
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, schemas = _allowed(choice, schemas)
        tools = [one for one in tools or () if one["function"]["name"] in schemas]
    uses = bool(schemas) and choice != "none"
    is_one = fields.parallel_tool_calls is False
    forced = _forced(choice, schemas, is_one=is_one)
    other = next((name for name in ("response_format", "structured_outputs") if getattr(fields, name) is not None), "")
    if forced is not None and other:
        raise _refusal(TWO_FORMS.format(repr(choice)[:80], other))
    if uses and forced is None and parsers.tools is None:
        raise RequestError(NO_PARSER, param="tools")
    if uses and forced is None and not lets_choose:
        raise RequestError(NOT_LET, param="tool_choice")
    return Reading(
        parsers=parsers,
        tools=tools if uses else None,
        schemas=schemas if uses else {},
        max_calls=1 if is_one else MAX_CALLS,
        forced=None if forced is None else forced[0],
        structured=None if forced is None else forced[1],
        has_reasoning=fields.include_reasoning is not False,
        has_form=forced is not None or bool(other),
    )


def _allowed(
    choice: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """(the mode, the tools) of a choice that allows some of the tools: for this answer there are no others."""
    given = choice.get("allowed_tools")
    mode, listed = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise _refusal('tool_choice.allowed_tools: expected {"mode": "auto" or "required", "tools": [...]}')
    return mode, {name: schemas[name] for name in (_named(one, schemas) for one in listed)}


def _named(choice: Any, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of a tool that is among the request's."""
    is_function = isinstance(choice, dict) and choice.get("type") == "function"
    function = choice.get("function") if is_function else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _refusal(f'tool_choice is {choice!r:.80}: expected {{"type": "function", "function": {{"name": ...}}}}')
    if name not in schemas:
        raise _refusal(f"tool_choice names {name!r:.80}, which is none of tools")
    return name


def _forced(
    choice: Any, schemas: Mapping[str, Mapping[str, Any]], *, is_one: bool
) -> tuple[ToolFormat, StructuredOutputs] | None:
    """How a forced call is written, and the grammar of it; None where the model may do as it likes."""
    if choice in (None, "auto", "none"):
        return None
    if isinstance(choice, dict):
        name = _named(choice, schemas)
        return one_tool(name, schemas[name])
    if choice == "required":
        if not schemas:
            raise _refusal('tool_choice is "required" and tools is empty')
        return any_tool(schemas, is_one=is_one)
    raise _refusal(f'tool_choice is {choice!r:.80}: expected "auto", "none", "required" or a tool')


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="tool_choice")
