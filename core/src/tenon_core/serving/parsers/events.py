"""What a parser tells, in order. Plain objects: they are made in the stream's path, a few a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

CONTENT, REASONING = "content", "reasoning"
Span = tuple[int, int]  # letters of all that was read, from the first to before the second


@dataclass(slots=True)
class TextDelta:
    """More of the answer (kind `CONTENT`) or of what was thought before it (`REASONING`). spans: where it was read."""

    kind: str
    text: str
    spans: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class CallDelta:
    """More of call `index`. The first one brings id and name; arguments is the next part of a JSON object's text."""

    index: int
    id: str | None
    name: str | None
    arguments: str


Event = TextDelta | CallDelta


def folded(events: list[Event]) -> list[Event]:
    """Neighbours of one kind, or of one call, joined: a step has few events, whatever it took to find them."""
    if len(events) < 2:
        return events
    found: list[Event] = []
    for _, run in groupby(events, key=_key):
        first, *rest = run
        if isinstance(first, TextDelta):
            first.text += "".join(one.text for one in rest if isinstance(one, TextDelta))
            first.spans += (span for one in rest if isinstance(one, TextDelta) for span in one.spans)
        else:
            first.arguments += "".join(one.arguments for one in rest if isinstance(one, CallDelta))
        found.append(first)
    return found


def _key(event: Event) -> str | int:
    return event.kind if isinstance(event, TextDelta) else event.index
