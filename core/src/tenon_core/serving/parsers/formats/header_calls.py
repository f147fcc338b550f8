"""Calls as a header, which names the tool, and a JSON object: MARK name MARK {...} MARK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..reader import MalformedError, Steps, markers
from ..scan import Scan
from .base import ToolFormat
from .json_calls import arguments

MAX_HEADER = 256


def plain_header(header: str) -> tuple[str, str | None]:
    """(name, id or None) of a header that is the name alone."""
    return header, None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderCalls(ToolFormat):
    """sections: those of `openers` around several calls. closers: marks after a call, each optional.

    name_ends: marks that end the header; a brace among them is the arguments' own.
    """

    sections: tuple[str, ...] = ()
    section_closers: tuple[str, ...] = ()
    name_ends: tuple[str, ...]
    closers: tuple[str, ...] = ()
    header: Callable[[str], tuple[str, str | None]] = plain_header

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        calls = tuple(one for one in self.openers if one not in self.sections)
        if opener in self.sections:
            yield from scan.space()
            if not (yield from scan.literal(*calls)):
                raise MalformedError
        while True:
            yield from self.call(scan)
            yield from scan.space()
            found = yield from scan.closing(*calls, *self.section_closers)
            if found not in calls:
                return

    def call(self, scan: Scan) -> Steps[None]:
        """One call, its mark read."""
        yield from scan.space()
        parts: list[str] = []
        found = yield from scan.copy_to(markers(*self.name_ends), parts.append, MAX_HEADER)
        name, identity = self.header("".join(parts).strip())
        if not found:
            raise MalformedError
        if found != "{":
            scan.skip(len(found))
        scan.start(name, identity)
        yield from scan.space()
        if not (self.closers and (yield from scan.which(markers(*self.closers)))):
            yield from arguments(scan)
        scan.end()
        for mark in self.closers:
            yield from scan.space()
            yield from scan.closing(mark)
