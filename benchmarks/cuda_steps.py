"""Where a step's time goes: host phases of every step, and on the device the time between two events around it.

    host     schedule | build | launch | wait | route             wait: the host is ahead, and the device decides
    stream   ...graph N-1 ] copies [ graph N ] copies [ graph N+1...     gap: one's end to the next one's begin

The wrappers stand where the engine's own objects stood; they cost about a microsecond a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tenon_platforms.execution import Executable

PHASES = ("schedule", "build", "launch", "wait", "route")


@dataclass(slots=True)
class Steps:
    """Seconds of each step by phase; `whole`: of `Engine.step`; rows: scheduled ones; decode: no prompt tokens."""

    phases: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PHASES})
    whole: list[float] = field(default_factory=list)
    decode: list[bool] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    _now: dict[str, float] = field(default_factory=dict)
    _delta: Any = None

    def timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, its time added to this step's phase."""

        def timed_call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self._now[phase] = self._now.get(phase, 0.0) + time.perf_counter() - start

        return timed_call

    def saw(self, delta: Any) -> None:
        """The delta of the step being launched."""
        self._delta = delta

    def end(self, seconds: float) -> None:
        """A step has returned."""
        if self._delta is not None:
            for name in PHASES:
                self.phases[name].append(self._now.get(name, 0.0))
            self.whole.append(seconds)
            self.decode.append(self._delta.num_decodes == len(self._delta.rows))
            self.rows.append(len(self._delta.rows))
        self._now, self._delta = {}, None

    def decode_medians(self) -> dict[str, float]:
        """Microseconds of a decode step, medians: whole, host (all but waiting), and each phase."""
        chosen = [index for index, is_decode in enumerate(self.decode) if is_decode]
        if not chosen:
            return {}
        found = {name: statistics.median([values[i] for i in chosen]) for name, values in self.phases.items()}
        whole = [self.whole[i] for i in chosen]
        host = [self.whole[i] - self.phases["wait"][i] for i in chosen]
        return {
            name: round(value * 1e6, 1)
            for name, value in {
                "step": statistics.median(whole),
                "host": statistics.median(host),
                **found,
            }.items()
        }


class _Part:
    """A part of the engine, some of whose methods are replaced."""

    def __init__(self, inner: Any, **methods: Any) -> None:
        self.__dict__.update(methods)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def watched(engine: Any) -> Any:
    """Yields `Steps` that fill while the engine is stepped through `step_of`."""
    steps = Steps()
    kept = (engine.scheduler, engine.deltas, engine.executor, engine.outputs)

    def build(*arguments: Any) -> Any:
        delta = kept[1].build(*arguments)
        steps.saw(delta)
        return delta

    launch = steps.timed("launch", kept[2].launch)

    def launch_step(delta: Any, masks: Any = None) -> Any:
        handle = launch(delta, masks)
        return _Part(handle, result=steps.timed("wait", handle.result))

    engine.scheduler = _Part(kept[0], schedule=steps.timed("schedule", kept[0].schedule))
    engine.deltas = _Part(kept[1], build=steps.timed("build", build))
    engine.executor = _Part(kept[2], launch=launch_step)
    engine.outputs = _Part(kept[3], route=steps.timed("route", kept[3].route))
    try:
        yield steps
    finally:
        engine.scheduler, engine.deltas, engine.executor, engine.outputs = kept


class EventedStep(Executable):
    """The step executable with an event on either side."""

    def __init__(self, inner: Executable) -> None:
        self.inner = inner
        self.kind = inner.kind
        self.marks: list[tuple[Any, Any, int, bool]] = []  # start, end, rows, is a captured decode step

    def prepare(self, key: Any, inputs: Any) -> None:
        self.inner.prepare(key, inputs)

    def run(self, key: Any, inputs: Any) -> Any:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        outputs = self.inner.run(key, inputs)
        end.record()
        self.marks.append((start, end, key.rows, key.static and key.is_decode))
        return outputs

    def release(self) -> None:
        self.inner.release()

    def figures(self) -> dict[str, float]:
        """Microseconds of captured decode steps: on the device, and between one's end and the next one's begin."""
        torch.cuda.synchronize()
        device = [start.elapsed_time(end) for start, end, _, decode in self.marks if decode]
        gaps = [
            before[1].elapsed_time(after[0])
            for before, after in zip(self.marks, self.marks[1:], strict=False)
            if before[3] and after[3]
        ]
        if not gaps:
            return {}
        gaps.sort()
        return {
            "device_us": round(statistics.median(device) * 1e3, 1),
            "gap_us": round(statistics.median(gaps) * 1e3, 1),
            "gap_p90_us": round(gaps[int(0.9 * (len(gaps) - 1))] * 1e3, 1),
            "gap_max_us": round(gaps[-1] * 1e3, 1),
            "idle_share": round(sum(gaps) / (sum(gaps) + sum(device)), 4),
        }


@contextmanager
def evented(runner: Any) -> Any:
    """Yields the `EventedStep` that stands in for the runner's step."""
    kept = runner.step
    runner.step = EventedStep(kept)
    try:
        yield runner.step
    finally:
        runner.step = kept
