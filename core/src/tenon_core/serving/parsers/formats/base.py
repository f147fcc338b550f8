"""`ToolFormat` and `ReasoningFormat`: what a family declares; third parties' are no different."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tenon_core.sampling.rules import ThinkingLimit

from ..reader import Steps
from ..scan import Scan, new_call_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """signs: alternatives, each a tuple of texts; a chat template with all texts of one is of this family."""

    signs: tuple[tuple[str, ...], ...] = ()

    def fit(self, template: str) -> int:
        """How well a chat template fits: the length of the longest alternative it has, 0 where it has none."""
        return max((sum(map(len, one)) for one in self.signs if all(text in template for text in one)), default=0)

    def marks(self) -> Iterator[str]:
        """Every text it looks for: special tokens within them must be visible."""
        for item in dataclasses.fields(self):
            if item.name != "signs":
                yield from _texts(getattr(self, item.name))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Format):
        yield from value.marks()
    elif isinstance(value, (str, tuple)):
        for text in (value,) if isinstance(value, str) else value:
            if isinstance(text, str) and text:
                yield text


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat(Format):
    """openers: marks with which calls begin. bare: first letters of an answer that is nothing but calls.

    silent: marks without meaning, dropped from the answer. new_id: makes ids of calls.
    """

    openers: tuple[str, ...] = ()
    bare: str = ""
    silent: tuple[str, ...] = ()
    new_id: Callable[[], str] = new_call_id

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        """Read calls, `opener` being read. Tell them by `scan.start`, `arguments`, `end`; return behind the last.

        Raises `MalformedError` where the text is no call: what was read since the last call is given back as content.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat(Format):
    """opens, closes: marks around what is thought. A prompt that ends with an opening mark begins it.

    is_assumed: an answer begins with it also without a mark, unless the prompt ends with a closing one.
    breaks: marks that end it without being part of it. stays: it is left in the content, marks included.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    is_assumed: bool = False
    breaks: tuple[str, ...] = ()
    stays: bool = False

    def is_open(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins within a thought."""
        end = prompt[-256:].rstrip()
        if end.endswith(self.closes):
            return False
        return self.is_assumed or end.endswith(self.opens)

    def limit(self, tokens: int, prompt: str) -> ThinkingLimit:
        """Ends what is thought after so many tokens."""
        return ThinkingLimit(
            tokens=tokens,
            opens=self.opens,
            closes=(*self.closes, *self.breaks),
            end=self.closes[0],
            is_open=self.is_open(prompt),
        )
