"""A scheduler that lets short prompts start first: the default one, fed from a queue of its own.

What waits is kept here, sorted by length, and handed on one sequence a step; the rest is the default's business.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenon_core.engine.schedule import Schedule, SchedulerContext
from tenon_core.engine.scheduler import DefaultScheduler
from tenon_core.engine.sequence import Sequence


class ShortestFirst:
    """`tenon serve MODEL --scheduler shortest-first`. started: prompt lengths in the order in which they got a row."""

    started: list[int] = []

    def __init__(self, context: SchedulerContext) -> None:
        self._inner = DefaultScheduler(context)
        self._waiting: list[Sequence] = []
        # everything that is not about waiting is the default's
        self.requeue, self.take_released = self._inner.requeue, self._inner.take_released
        self.suspect, self.clear_suspect = self._inner.suspect, self._inner.clear_suspect
        self.settle, self.extend = self._inner.settle, self._inner.extend

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda one: (len(one.tokens), one.order))

    def schedule(self) -> Schedule | None:
        if self._waiting and not self._inner.num_waiting:
            self._inner.add(self._waiting.pop(0))
        schedule = self._inner.schedule()
        if schedule is not None:
            self.started.extend(len(one.tokens) for one in schedule.started)
        return schedule

    def end(self, sequence: Sequence) -> None:
        for elder in self._waiting:
            if sequence is elder or sequence in elder.siblings:  # the default knows how a waiting one ends
                self._waiting.remove(elder)
                self._inner.add(elder)
                break
        self._inner.end(sequence)

    def sequences(self) -> Iterator[Sequence]:
        yield from self._waiting
        yield from self._inner.sequences()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + self._inner.num_waiting

    @property
    def num_running(self) -> int:
        return self._inner.num_running

    @property
    def num_preemptions(self) -> int:
        return self._inner.num_preemptions
