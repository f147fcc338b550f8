"""Calls as JSON objects, `{"name": ..., "arguments": {...}}`: alone, one after another, or in a list."""

from __future__ import annotations

from dataclasses import dataclass

from ..reader import MalformedError, Steps
from ..scan import Scan
from ..values import JSON, as_json, colon, container, text_of, value
from .base import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls(ToolFormat):
    """closers: marks after the calls, optional. separators: letters between objects that are in no list.

    An answer that begins with a call without a mark (`bare`) must name a tool of the request and have arguments.
    """

    closers: tuple[str, ...] = ()
    separators: str = ""
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        scan.only_known = not opener
        yield from scan.space()
        is_list = bool((yield from scan.literal("[")))
        while True:
            yield from self._call(scan, needs_arguments=not opener)
            yield from scan.space()
            if is_list:
                found = yield from scan.literal(",", "]")
                if found == "]":
                    break
                if not found:
                    raise MalformedError
            else:
                letter = yield from scan.peek()
                if letter and letter in self.separators:
                    scan.skip(1)
                elif letter != "{":
                    break
        yield from scan.space()
        yield from scan.closing(*self.closers)

    def _call(self, scan: Scan, *, needs_arguments: bool) -> Steps[None]:
        yield from scan.space()
        if not (yield from scan.literal("{")):
            raise MalformedError
        while True:
            key = yield from text_of(scan)
            yield from colon(scan)
            if key in self.name_keys and not scan.has_name:
                scan.start((yield from text_of(scan)))
            elif key in self.argument_keys and not scan.has_arguments:
                yield from arguments(scan)
            else:
                yield from value(scan, JSON, _ignore)
            yield from scan.space()
            found = yield from scan.literal(",", "}")
            if not found:
                raise MalformedError
            if found == "}":
                break
        if needs_arguments and not scan.has_arguments:
            raise MalformedError
        scan.end()


def _ignore(_: str) -> None:
    """Nothing is told of it."""


def arguments(scan: Scan) -> Steps[None]:
    """A call's arguments: a map, null, or a text that holds a map, as some models write it."""
    yield from scan.space()
    letter = yield from scan.peek()
    if letter == "{":
        yield from container(scan, JSON, scan.arguments)
    elif letter == '"':
        found = as_json((yield from text_of(scan)), JSON)
        if found is None or not found.startswith("{"):
            raise MalformedError
        scan.arguments(found)
    elif (yield from scan.literal("null")):
        scan.arguments("{}")
    else:
        raise MalformedError
