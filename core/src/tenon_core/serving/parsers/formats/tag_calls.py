"""Calls as tags, XML-like: a name, then a tag for each argument, whose text is a string or JSON as its schema says."""

from __future__ import annotations

from dataclasses import dataclass

from ..reader import MAX_HELD, MalformedError, Steps, markers
from ..scan import Scan
from ..schema_types import json_value, types_of
from ..values import escaped
from .base import ToolFormat

MAX_NAME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCalls(ToolFormat):
    """TAG: call_open NAME name_ends ( key_open KEY key_close value_open VALUE value_close )* call_close

    sections: those of `openers` around calls. value_open: empty where the key's end begins the value.
    has_lines: values stand on lines of their own, whose ends are no part of them.
    """

    sections: tuple[str, ...] = ()
    section_closers: tuple[str, ...] = ()
    call_open: str
    name_ends: tuple[str, ...]
    key_open: str
    key_close: str
    value_open: str = ""
    value_close: str
    call_close: str
    has_lines: bool = False

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        if opener in self.sections:
            yield from scan.space()
            if not (yield from scan.literal(self.call_open)):
                raise MalformedError
        while True:
            yield from self._call(scan)
            yield from scan.space()
            if (yield from scan.closing(self.call_open, *self.section_closers)) != self.call_open:
                return

    def _call(self, scan: Scan) -> Steps[None]:
        parts: list[str] = []
        found = yield from scan.copy_to(markers(*self.name_ends), parts.append, MAX_NAME)
        if not found:
            raise MalformedError
        if found not in (self.key_open, self.call_close):
            scan.skip(len(found))
        name = "".join(parts).strip()
        scan.start(name)
        is_first = True
        while True:
            yield from scan.space()
            found = yield from scan.literal(self.key_open, self.call_close)
            if not found:
                raise MalformedError
            if found == self.call_close:
                break
            key, _ = yield from scan.text_until(markers(self.key_close), MAX_NAME)
            if self.value_open:
                yield from scan.space()
                if not (yield from scan.literal(self.value_open)):
                    raise MalformedError
            scan.arguments(("{" if is_first else ", ") + f'"{escaped(key.strip())}": ')
            yield from self._value(scan, types_of(scan.tools.get(name), key.strip()))
            is_first = False
        scan.arguments("{}" if is_first else "}")
        scan.end()

    def _value(self, scan: Scan, types: frozenset[str]) -> Steps[None]:
        end = markers(self.value_close)
        if types == {"string"}:
            lines = Lines(scan, trims=self.has_lines)
            scan.arguments('"')
            if not (yield from scan.copy_until(end, lines.take)):
                raise MalformedError
            scan.arguments('"')
            return
        parts: list[str] = []
        if not (yield from scan.copy_until(end, parts.append, MAX_HELD)):
            raise MalformedError
        text = "".join(parts)
        scan.arguments(json_value(text.removeprefix("\n").removesuffix("\n") if self.has_lines else text, types))


class Lines:
    """A text argument as it comes, without the line ends around it where asked."""

    def __init__(self, scan: Scan, *, trims: bool) -> None:
        self._scan, self._trims = scan, trims
        self._is_first, self._held = True, ""

    def take(self, piece: str) -> None:
        """The next part."""
        if not piece:
            return
        if self._trims:
            if self._is_first:
                piece = piece.removeprefix("\n")
            piece = self._held + piece
            self._held = "\n" if piece.endswith("\n") else ""
            piece = piece.removesuffix("\n")
        self._is_first = False
        if piece:
            self._scan.arguments(escaped(piece))
