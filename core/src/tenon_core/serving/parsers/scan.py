"""`Scan`: a reader that also tells what was found. Formats read from it and say what they understood.

A call is told once it is whole, or once `COMMIT` letters of its arguments were valid; until then it can turn out to be
none, and its text comes back as content. So short calls are never told by halves, and long ones stream.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from .events import CONTENT, REASONING, CallDelta, Event, Span, TextDelta
from .reader import MalformedError, Reader

COMMIT = 512  # letters of arguments
MAX_BLANK = 256  # white space held back until it is clear what follows
MAX_CALLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
Schema = Mapping[str, Any]


def new_call_id() -> str:
    """An id as OpenAI writes them."""
    return f"call_{secrets.token_hex(12)}"


class Trimmed:
    """One kind of text, without the white space around it where asked; what may be its end is held back."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.blank = ""
        self.has_text = False
        self._spans: list[Span] = []  # of what came and was neither shown nor dropped

    def take(self, text: str, end: int, *, drops_lead: bool) -> list[TextDelta]:
        """What is certain to be shown of the text so far. end: the letters read up to the text's end."""
        first = end - len(text)
        if self._spans and self._spans[-1][1] == first:
            first = self._spans.pop()[0]
        self._spans.append((first, end))
        shown = self._shown(text, drops_lead=drops_lead)
        self._skip(sum(last - first for first, last in self._spans) - len(shown) - len(self.blank))
        return [TextDelta(self.kind, shown, self._skip(len(shown)))] if shown else []

    def rest(self) -> list[TextDelta]:
        """What was held back, at the end."""
        return [TextDelta(self.kind, self.blank, self._spans)] if self.blank else []

    def _skip(self, count: int) -> list[Span]:
        """Take the first letters' spans out."""
        found: list[Span] = []
        while count > 0:
            first, last = self._spans.pop(0)
            if last - first > count:
                self._spans.insert(0, (first + count, last))
                last = first + count
            count -= last - first
            found.append((first, last))
        return found

    def _shown(self, text: str, *, drops_lead: bool) -> str:
        body = text.rstrip()
        self.blank += text if not body else ""
        shown = ""
        if body:
            shown = body if drops_lead and not self.has_text else self.blank + body
            if drops_lead and not self.has_text:
                shown = shown.lstrip()
            self.has_text, self.blank = True, text[len(body) :]
        if len(self.blank) > MAX_BLANK:
            if self.has_text or not drops_lead:
                shown += self.blank[:-MAX_BLANK]
            self.blank = self.blank[-MAX_BLANK:]
        return shown


class Scan(Reader):
    """tools: the request's, by name: their parameters' schemas. only_known: a call of another name is none.

    max_calls: later ones are read and not told. new_id: makes a call's id where its text has none.
    """

    def __init__(
        self,
        tools: Mapping[str, Schema],
        *,
        max_calls: int = MAX_CALLS,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        super().__init__()
        self.tools = tools
        self.max_calls = max_calls
        self.new_id = new_id
        self.events: list[Event] = []
        self.num_calls = 0
        self.only_known = False
        self.was_understood = False  # whether what the last mark began was a message, though no call
        self.had_reasoning = False
        self._content, self._reasoning = Trimmed(CONTENT), Trimmed(REASONING)
        self._name: str | None = None  # of the call being read
        self._id: str | None = None
        self._arguments: list[str] = []  # of the call being read, not told yet
        self._num_arguments = 0
        self._is_told = False  # of the call being read

    # text

    def content(self, text: str) -> None:
        """A part of the answer."""
        drops_lead = self.had_reasoning or self.num_calls > 0
        self.events += self._content.take(text, self.num_before + self.place, drops_lead=drops_lead)

    def reasoning(self, text: str) -> None:
        """A part of what was thought."""
        self.had_reasoning = True
        self.events += self._reasoning.take(text, self.num_before + self.place, drops_lead=True)

    @property
    def has_content(self) -> bool:
        """Whether any letter of an answer came."""
        return self._content.has_text

    def flush(self) -> None:
        """The end: white space that ends a plain answer is part of it."""
        if not self.num_calls and (self._content.has_text or not self.had_reasoning):
            self.events += self._content.rest()
        self._content.blank = ""

    # calls

    def start(self, name: str, identity: str | None = None) -> None:
        """The call that is being read is one of `name`. Raises `MalformedError` where there can be none."""
        is_known = name in self.tools
        if not self.tools or self._name is not None or not (is_known or _NAME.fullmatch(name)):
            raise MalformedError
        if self.only_known and not is_known:
            raise MalformedError
        self._name, self._id = name, identity
        self._tell_if_long()

    def arguments(self, text: str) -> None:
        """The next part of its arguments, of JSON that is valid so far."""
        self._arguments.append(text)
        self._num_arguments += len(text)
        self._tell_if_long()

    @property
    def has_arguments(self) -> bool:
        """Whether any came."""
        return self._num_arguments > 0

    @property
    def has_name(self) -> bool:
        """Whether the call's name is known."""
        return self._name is not None

    def _tell_if_long(self) -> None:
        if self._is_told or (self._name is not None and self._num_arguments >= COMMIT):
            self._tell()

    def _tell(self) -> None:
        text = "".join(self._arguments)
        self._arguments.clear()
        if self.num_calls < self.max_calls:
            index = self.num_calls
            if self._is_told:
                self.events.append(CallDelta(index, None, None, text))
            else:
                self.events.append(CallDelta(index, self._id or self.new_id(), self._name, text))
        if not self._is_told:
            self._is_told = True
            self.let_go()

    def end(self) -> None:
        """The call is whole."""
        if self._name is None:
            raise MalformedError
        if not self._num_arguments:
            self.arguments("{}")
        self._tell()
        self._forget(is_one=True)
        self.hold()

    def abandon(self) -> None:
        """What was read is no call, or a call that broke off: then what was told of it stands, and is no valid JSON."""
        is_told = self._is_told
        self._forget(is_one=is_told)
        text = self.let_go()
        if not is_told and text:
            self.content(text)

    def pass_over(self) -> None:
        """What was read is neither content nor a call: it was the head of what comes now."""
        self.let_go()
        self.was_understood = True

    def _forget(self, *, is_one: bool) -> None:
        self.num_calls += is_one
        self._name, self._id, self._is_told, self._num_arguments = None, None, False, 0
        self._arguments.clear()
