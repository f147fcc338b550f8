"""What a parser tells, in order. Plain objects: they are made in the stream's path, a few a token."""

from __future__ import annotations

from dataclasses import dataclass

CONTENT, REASONING = "content", "reasoning"


@dataclass(slots=True)
class TextDelta:
    """More of the answer (kind `CONTENT`) or of what was thought before it (`REASONING`)."""

    kind: str
    text: str


@dataclass(slots=True)
class CallDelta:
    """More of call `index`. The first one brings id and name; arguments is the next part of a JSON object's text."""

    index: int
    id: str | None
    name: str | None
    arguments: str


Event = TextDelta | CallDelta


def fold(events: list[Event], event: Event) -> None:
    """Append, joining what belongs together, so that a step has one event a call and a kind of text."""
    last = events[-1] if events else None
    if isinstance(event, TextDelta):
        if isinstance(last, TextDelta) and last.kind == event.kind:
            last.text += event.text
            return
    elif isinstance(last, CallDelta) and last.index == event.index:
        last.arguments += event.arguments
        return
    events.append(event)
