"""An answer as a row of blocks: text, thoughts and calls in the order in which they came, told as they grow.

Between the parsers' events and the protocols whose answers are lists of blocks. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tenon_core.engine.messages import TokenLogprobs

from .parsers.events import CONTENT, CallDelta, Event, Span


class Kind(Enum):
    """What a block holds."""

    TEXT = "text"
    THOUGHT = "thought"
    CALL = "call"


class Stage(Enum):
    """What happened to a block."""

    BEGUN = "begun"
    GREW = "grew"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Block:
    """index: its place in the answer. call_id, name: a call's; its text is the arguments as JSON."""

    index: int
    kind: Kind
    id: str
    call_id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    is_ended: bool = False

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of a block's life. text, logprobs: what it grew by."""

    block: Block
    stage: Stage
    text: str = ""
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(slots=True, kw_only=True)
class Blocks:
    """Takes a sample's events. prefixes: of the ids of blocks by their kind; label: what makes the ids unique."""

    prefixes: Mapping[Kind, str]
    label: str
    blocks: list[Block] = field(default_factory=list)
    _calls: dict[int, Block] = field(default_factory=dict)
    _untold: list[tuple[int, int, TokenLogprobs]] = field(default_factory=list)  # with the places of their letters
    _num_letters: int = 0

    def take(self, events: Iterable[Event], text: str = "", position: TokenLogprobs | None = None) -> list[Change]:
        """What these events change. text: of the token that made them, position: its log-probabilities, to be told
        with the text that it is part of."""
        start = self._num_letters
        self._num_letters += len(text)
        if position is not None:
            self._untold.append((start, self._num_letters, position))
        return [change for event in events for change in self._of(event)]

    def end(self) -> list[Change]:
        """The answer is at its end."""
        return self._close()

    def _of(self, event: Event) -> Iterable[Change]:
        if isinstance(event, CallDelta):
            kind, text = Kind.CALL, event.arguments
            is_new = event.index not in self._calls
        else:
            kind, text = (Kind.TEXT if event.kind == CONTENT else Kind.THOUGHT), event.text
            is_new = not self.blocks or self.blocks[-1].is_ended or self.blocks[-1].kind is not kind
        if is_new:
            yield from self._close()
            yield self._open(kind, event)
        block = self._calls[event.index] if isinstance(event, CallDelta) else self.blocks[-1]
        found: list[TokenLogprobs] = []
        if not isinstance(event, CallDelta) and kind is Kind.TEXT and self._untold:
            found = self._positions_of(event.spans or [(self._num_letters - len(text), self._num_letters)])
        block.logprobs += found
        if text:
            block.parts.append(text)
            yield Change(block=block, stage=Stage.GREW, text=text, logprobs=found)

    def _positions_of(self, spans: Sequence[Span]) -> list[TokenLogprobs]:
        """The tokens that have letters in the spans. What comes before them and has none is no text: marks, thoughts.

        A token without letters is the beginning of a character, and belongs to what follows.
        """
        found, later = [], []
        for start, end, position in self._untold:
            if start >= spans[-1][1]:
                later.append((start, end, position))
            elif any(start < last and max(end, start + 1) > first for first, last in spans):
                found.append(position)
        self._untold = later
        return found

    def _open(self, kind: Kind, event: Event) -> Change:
        block = Block(index=len(self.blocks), kind=kind, id=f"{self.prefixes[kind]}_{self.label}{len(self.blocks):02x}")
        if isinstance(event, CallDelta):
            block.call_id, block.name = event.id or "", event.name or ""
            self._calls[event.index] = block
        self.blocks.append(block)
        return Change(block=block, stage=Stage.BEGUN)

    def _close(self) -> list[Change]:
        if not self.blocks or self.blocks[-1].is_ended:
            return []
        self.blocks[-1].is_ended = True
        return [Change(block=self.blocks[-1], stage=Stage.ENDED)]
