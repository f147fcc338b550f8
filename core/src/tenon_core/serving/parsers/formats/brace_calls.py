"""Calls as `call:NAME{key:value,...}` with bare keys and marked texts, as Gemma's function models write them."""

from __future__ import annotations

from dataclasses import dataclass

from ..reader import MalformedError, Steps, markers
from ..scan import Scan
from ..values import container, gemma
from .base import ToolFormat

MAX_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class BraceCalls(ToolFormat):
    """quote: the mark before and after a text. closers: marks after a call, optional."""

    quote: str
    closers: tuple[str, ...] = ()

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        yield from scan.space()
        if not (yield from scan.literal("call:")):
            raise MalformedError
        parts: list[str] = []
        if not (yield from scan.copy_to(markers("{"), parts.append, MAX_NAME)):
            raise MalformedError
        scan.start("".join(parts).strip())
        yield from container(scan, gemma(self.quote), scan.arguments)
        scan.end()
        yield from scan.space()
        yield from scan.closing(*self.closers)
