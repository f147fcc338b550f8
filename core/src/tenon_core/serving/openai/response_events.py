"""A response's stream: every event of its life with its number, in the order that clients' libraries expect.

created, in_progress, (item.added, [part.added, delta ..., done, part.done], item.done) ..., completed
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from ..blocks import Change, Kind, Stage
from ..errors import HttpError
from ..sse import typed_event
from .response_run import Run

LAST = {"completed": "completed", "failed": "failed", "incomplete": "incomplete", "cancelled": "incomplete"}
DELTAS = {
    Kind.TEXT: "response.output_text",
    Kind.THOUGHT: "response.reasoning_text",
    Kind.CALL: "response.function_call_arguments",
}


@dataclass(slots=True, kw_only=True)
class Teller:
    """Makes the events of one run."""

    run: Run
    number: int = 0

    def event(self, kind: str, **values: Any) -> bytes:
        """One event with the next number."""
        found = typed_event({"type": kind, "sequence_number": self.number, **values})
        self.number += 1
        return found

    def state(self, name: str) -> bytes:
        """An event that brings the whole response."""
        return self.event(f"response.{name}", response=self.run.response())

    def of(self, change: Change) -> Iterator[bytes]:
        """The events of one change."""
        block = change.block
        place: dict[str, Any] = {"item_id": block.id, "output_index": block.index}
        has_part = block.kind is not Kind.CALL
        if change.stage is Stage.BEGUN:
            yield self.event("response.output_item.added", output_index=block.index, item=self._empty(change))
            if has_part:
                yield self.event("response.content_part.added", **place, content_index=0, part=self._part(change, ""))
            return
        if has_part:
            place["content_index"] = 0
        if change.stage is Stage.GREW:
            if block.kind is Kind.TEXT:
                place["logprobs"] = self.run.logprobs(change.logprobs)
            yield self.event(f"{DELTAS[block.kind]}.delta", **place, delta=change.text)
            return
        if block.kind is Kind.CALL:
            yield self.event(f"{DELTAS[Kind.CALL]}.done", **place, name=block.name, arguments=block.text)
        else:
            more = {"logprobs": self.run.logprobs(block.logprobs)} if block.kind is Kind.TEXT else {}
            yield self.event(f"{DELTAS[block.kind]}.done", **place, **more, text=block.text)
            yield self.event("response.content_part.done", **place, part=self.run.part(block))
        yield self.event("response.output_item.done", output_index=block.index, item=self.run.item(block))

    def _empty(self, change: Change) -> dict[str, Any]:
        """The item before anything is in it."""
        item = {**self.run.item(change.block), "status": "in_progress"}
        return item | {key: type(item[key])() for key in ("content", "arguments") if key in item}

    def _part(self, change: Change, text: str) -> dict[str, Any]:
        part = {**self.run.part(change.block), "text": text}
        return part | ({"logprobs": []} if "logprobs" in part else {})


async def events(run: Run, interval: int) -> AsyncIterator[bytes]:
    """All events, the last of which brings the response as it ended."""
    teller = Teller(run=run)
    source = run.changes(interval=interval)
    try:
        yield teller.state("created")
        yield teller.state("in_progress")
        try:
            async for changes in source:
                for change in changes:
                    for event in teller.of(change):
                        yield event
        except Exception:
            if run.error is None:
                raise
        yield teller.state(LAST[run.status])
    finally:
        await source.aclose()  # type: ignore[attr-defined]


def error_event(error: HttpError) -> bytes:
    """An error that no response could tell."""
    return typed_event({"type": "error", "code": error.code, "message": error.message, "param": error.param})
