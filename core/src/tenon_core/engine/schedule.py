"""What a scheduler is: what it is made with, what it is asked, and the schedules it answers with.

Ours and third parties' (`tenon.schedulers`) are the same to the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tenon_core.state.rows import RowTable
from tenon_platforms.shapes import ScheduleLimits

from .kv_memory import KVMemory
from .sequence import Sequence

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Part of a prompt: `num_tokens` tokens of `sequence` from `start` on. `is_last`: it ends in a sampled token."""

    sequence: Sequence
    start: int
    num_tokens: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One step: rows that decode one token each, and chunks of prompts. started: sequences new to their row.

    born: for every chunk that ends a prompt, the samples that begin with it.
    """

    decodes: Int32
    chunks: tuple[Chunk, ...] = ()
    started: tuple[Sequence, ...] = ()
    born: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in it."""
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerContext:
    """What a scheduler is made with. Third parties get the same through `tenon.schedulers`."""

    table: RowTable
    memory: KVMemory
    limits: ScheduleLimits


class Scheduler(Protocol):
    """What the engine asks of a scheduler."""

    num_preemptions: int

    def add(self, sequence: Sequence) -> None:
        """A new sequence; it waits."""
        ...

    def end(self, sequence: Sequence) -> None:
        """It has ended, by itself or aborted: never schedule it again, free its row once it has landed."""
        ...

    def requeue(self, sequence: Sequence) -> None:
        """Take it off its row and compute it again later."""
        ...

    def schedule(self) -> Schedule | None:
        """The next step, or None where nothing can run now. Counters in the row table are advanced."""
        ...

    def extend(self, sequence: Sequence, token: int) -> None:
        """A beam that was held goes on with this token: compute it as the end of a prompt."""
        ...

    def settle(self) -> None:
        """Free the rows and blocks of those that have left and have no step in flight."""
        ...

    def take_released(self) -> tuple[int, ...]:
        """Rows that became free since the last call."""
        ...

    def suspect(self, sequence: Sequence) -> None:
        """It was in a step that failed: run it alone, from its known tokens, until a step of it succeeds."""
        ...

    def clear_suspect(self, sequence: Sequence) -> None:
        """A step of it alone succeeded."""
        ...

    @property
    def num_waiting(self) -> int:
        """Sequences without a row."""
        ...

    @property
    def num_running(self) -> int:
        """Sequences with a row."""
        ...

    def sequences(self) -> Iterator[Sequence]:
        """All sequences that have not ended."""
        ...
