"""Harmony: an answer as messages on channels, the way gpt-oss writes it.

    <|start|>assistant <|channel|>NAME to=RECIPIENT <|constrain|>json <|message|> BODY <|end|> | <|call|> | <|return|>

Channel `analysis` is reasoning; a message to `functions.NAME` is a call; all else is content. The prompt ends behind
`<|start|>assistant`, so the first message begins with its channel or its recipient.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tenon_core.sampling.rules import ThinkingLimit

from ..reader import MalformedError, Steps, markers
from ..scan import Scan
from .base import ToolFormat
from .json_calls import arguments

MAX_HEADER = 512
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmony(ToolFormat):
    """Both a tool and a reasoning format: whichever is asked for, messages are told apart."""

    openers: tuple[str, ...] = ("<|start|>", "<|channel|>")
    silent: tuple[str, ...] = ("<|end|>", "<|call|>", "<|return|>")
    bare: str = "t"  # of `to=`
    message: str = "<|message|>"
    constrain: str = "<|constrain|>"

    def limit(self, tokens: int, prompt: str) -> ThinkingLimit:
        """Ends what is thought after so many tokens; the answer's channel follows at once."""
        return ThinkingLimit(
            tokens=tokens,
            opens=(f"<|channel|>analysis{self.message}",),
            closes=("<|end|>", "<|return|>", "<|call|>"),
            end=f"<|end|><|start|>assistant<|channel|>final{self.message}",
            repeats=True,
        )

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        if not opener and (yield from scan.ahead(3)) != "to=":
            raise MalformedError
        parts = [opener]
        if not (yield from scan.copy_until(markers(self.message), parts.append, MAX_HEADER)):
            raise MalformedError
        header = "".join(parts)
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        name = "" if recipient is None else recipient.group(1)
        if name.startswith("functions."):
            scan.start(name.removeprefix("functions."))
            yield from arguments(scan)
            scan.end()
            yield from scan.space()
            yield from scan.closing(*self.silent)
            return
        scan.pass_over()
        is_thought = bool(name) or (channel is not None and channel.group(1) == "analysis")
        ends = markers(*self.silent, "<|start|>")
        found = yield from scan.copy_to(ends, scan.reasoning if is_thought else scan.content)
        if found in self.silent:
            scan.skip(len(found))
