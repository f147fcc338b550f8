"""`OutputParser`: one sample's text, piece by piece, as content, reasoning and calls.

    begin -> [reasoning] -> content <-> calls

A generator runs over the text and rests where it needs more of it; so any chunking gives the same outcome, and each
letter costs a bounded amount of work. Knows formats, no protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .events import Event, folded
from .formats.base import ReasoningFormat, ToolFormat
from .reader import MalformedError, Steps, markers
from .scan import MAX_CALLS, Scan


class OutputParser:
    """tools: schemas of parameters by name; without any, or without a tool format, calls are content.

    prompt: the rendered prompt, which tells whether the answer begins within a thought.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None = None,
        reasoning_format: ReasoningFormat | None = None,
        *,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        prompt: str = "",
        max_calls: int = MAX_CALLS,
    ) -> None:
        self._tools, self._reasoning = tool_format, reasoning_format
        self.scan = Scan(tools or {}, max_calls=max_calls)
        if tool_format is not None:
            self.scan.new_id = tool_format.new_id
        self._openers = () if tool_format is None else tool_format.openers
        self._silent = () if tool_format is None else tool_format.silent
        self._is_open = reasoning_format is not None and reasoning_format.is_open(prompt)
        self._steps = self._run()
        self._is_done = False

    @property
    def num_calls(self) -> int:
        """Calls told so far."""
        return min(self.scan.num_calls, self.scan.max_calls)

    def feed(self, text: str) -> list[Event]:
        """Take text in; what is certain now."""
        self.scan.feed(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """The text is at its end; all that was held back."""
        self.scan.is_ended = True
        events = self._advance()
        assert self._is_done, "an ended reader never waits"
        return events

    def _advance(self) -> list[Event]:
        if not self._is_done:
            try:
                next(self._steps)
            except StopIteration:
                self._is_done = True
        events, self.scan.events = self.scan.events, []
        return folded(events)

    def _run(self) -> Steps[None]:
        scan = self.scan
        yield from self._begin()
        wanted = markers(*self._openers, *self._silent)
        while True:
            found = yield from scan.copy_to(wanted, scan.content)
            if not found:
                break
            if found in self._silent:
                scan.skip(len(found))
            else:
                yield from self._calls(found)
        scan.flush()

    def _begin(self) -> Steps[None]:
        """Up to the answer's first letter: a thought before it, calls that need no mark."""
        scan, thought = self.scan, self._reasoning
        opens = () if thought is None else thought.opens
        if thought is not None and thought.stays:
            if self._is_open:
                scan.content(opens[0])
            return
        if self._is_open:
            yield from scan.space()
            yield from scan.literal(*opens)
            yield from self._think()
        yield from scan.space(scan.content)
        if not self._is_open and (yield from scan.literal(*opens)):
            yield from self._think()
            yield from scan.space(scan.content)
        letter = yield from scan.peek()
        bare = "" if self._tools is None or not scan.tools else self._tools.bare
        if letter and letter in bare and not (yield from scan.which(markers(*self._openers))):
            yield from self._calls("")

    def _think(self) -> Steps[None]:
        thought, scan = self._reasoning, self.scan
        assert thought is not None
        scan.had_reasoning = True
        breaks = (mark for mark in thought.breaks if mark in self._openers)
        found = yield from scan.copy_to(markers(*thought.closes, *breaks), scan.reasoning)
        if found in thought.closes:
            scan.skip(len(found))

    def _calls(self, opener: str) -> Steps[None]:
        assert self._tools is not None
        scan = self.scan
        scan.only_known = scan.was_understood = False
        scan.hold()
        try:
            scan.skip(len(opener))
            before = scan.num_calls
            yield from self._tools.parse(scan, opener)
            if scan.num_calls == before and not scan.was_understood:
                raise MalformedError
            scan.let_go()
        except MalformedError:
            scan.abandon()
