"""Clocks of `tenon bench host`: a calibration loop, and timing wrappers around an engine's parts.

The engine is left as it is: the wrappers stand in for its scheduler, executor and router, and pass everything on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

CALIBRATION_ROUNDS = 400


def calibrate() -> float:
    """Seconds that fixed work takes now: interpreter work and small numpy calls, as a decode step has them."""
    numbers = np.arange(1024, dtype=np.int32)
    total = 0
    start = time.perf_counter()
    for round_index in range(CALIBRATION_ROUNDS):
        numbers = numbers + 1
        total += int(numbers[round_index]) + len({index: index for index in range(32)})
    return time.perf_counter() - start


class Timed:
    """Stands in for `inner`: one method of it is timed, everything else is passed on.

    before, after: called with the clock's reading around the call.
    """

    def __init__(
        self, inner: Any, method: str, before: Callable[[float], None], after: Callable[[float], None]
    ) -> None:
        self._inner = inner
        call = getattr(inner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            before(time.perf_counter())
            result = call(*args, **kwargs)
            after(time.perf_counter())
            return result

        setattr(self, method, timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class PhaseClock:
    """Where a step's time goes, by marks.

    step.. | schedule | build + launch.. | executable.. launch ends | .. step ends
             schedule   prepare            launch                     post
    """

    def __init__(self) -> None:
        self._totals = dict.fromkeys(("schedule", "prepare", "launch", "post"), 0.0)
        self._mark = 0.0

    @classmethod
    def around(cls, engine: Any, runner: Any) -> PhaseClock:
        """Put the wrappers into an engine and its runner; they stay."""
        clock = cls()
        engine.scheduler = Timed(engine.scheduler, "schedule", clock._start, clock._to("schedule"))
        engine.executor = Timed(engine.executor, "launch", clock._nothing, clock._to("launch"))
        runner.step = Timed(runner.step, "run", clock._to("prepare"), clock._nothing)
        return clock

    def run(self, step: Callable[[], Any], count: int) -> dict[str, float]:
        """Seconds a step of each phase, over `count` steps."""
        for phase in self._totals:
            self._totals[phase] = 0.0
        for _ in range(count):
            step()
            self._to("post")(time.perf_counter())
        return {phase: total / count for phase, total in self._totals.items()}

    def _start(self, now: float) -> None:
        self._mark = now

    def _nothing(self, now: float) -> None:
        """The mark stands."""

    def _to(self, phase: str) -> Callable[[float], None]:
        """Everything since the last mark belongs to `phase`."""

        def close(now: float) -> None:
            self._totals[phase] += now - self._mark
            self._mark = now

        return close
