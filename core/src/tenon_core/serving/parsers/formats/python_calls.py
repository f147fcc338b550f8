"""Calls as Python would write them: `[name(key=value, ...), ...]`. Read by a grammar, never evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..reader import MalformedError, Steps
from ..scan import Scan
from ..values import PYTHON, value
from .base import ToolFormat

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_KEY = re.compile(r"[A-Za-z0-9_]+")
MAX_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls(ToolFormat):
    """closers: marks after the calls, optional. Without a mark before it (`bare`) a call must be of a known tool."""

    closers: tuple[str, ...] = ()

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        scan.only_known = not opener
        yield from scan.space()
        is_list = bool((yield from scan.literal("[")))
        while True:
            yield from self._call(scan)
            yield from scan.space()
            if is_list:
                found = yield from scan.literal(",", "]")
                if found == "]":
                    break
                if not found:
                    raise MalformedError
            else:
                letter = yield from scan.peek()
                if not _KEY.match(letter):
                    break
        yield from scan.space()
        yield from scan.closing(*self.closers)

    def _call(self, scan: Scan) -> Steps[None]:
        yield from scan.space()
        name = yield from scan.whole_run(_NAME, MAX_NAME)
        if not (yield from scan.literal("(")):
            raise MalformedError
        scan.start(name)
        is_first = True
        while True:
            yield from scan.space()
            if (yield from scan.literal(")")):
                break
            key = yield from scan.whole_run(_KEY, MAX_NAME)
            yield from scan.space()
            if not key or not (yield from scan.literal("=")):
                raise MalformedError
            scan.arguments(("{" if is_first else ", ") + f'"{key}": ')
            yield from value(scan, PYTHON, scan.arguments)
            is_first = False
            yield from scan.space()
            found = yield from scan.literal(",", ")")
            if not found:
                raise MalformedError
            if found == ")":
                break
        scan.arguments("{}" if is_first else "}")
        scan.end()
