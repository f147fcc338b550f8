"""Captured executables: a function of a step recorded once per key as a CUDA graph, then replayed.

The inputs of a static key are the same tensors at every call, so a replay reads what the step's packed copy just wrote,
and its outputs are always the same buffers; the runner copies them out before it queues another step. All graphs share
one memory pool, which is safe because they run one after the other on one stream.

A key that was not prepared runs eagerly the first time, which is a real step, and is recorded right after: recording
launches nothing. A tensor that comes of it (*forward*'s logits, which *sample* is then recorded with) is given from the
graph's own buffer already. Where recording fails, the key goes on running eagerly and a warning says why.

Greedy, plain and filtered sampling have as many keys as the lattice has sizes. Every other mode has as many again,
and a client chooses among hundreds of modes: only so many of their graphs are kept, and what comes later runs eagerly.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tenon_platforms.device import Fault
from tenon_platforms.execution import Executable, ExecutableKind
from tenon_platforms.shapes import GREEDY, SamplingMode, ShapeKey

from .compiling import Ahead
from .faults import classify

LOG = logging.getLogger(__name__)
PLAIN_MODES = (GREEDY, SamplingMode(noise=True), SamplingMode(noise=True, filters=True))
MOST_OTHER_GRAPHS = 256  # of other modes, of one executable


class Graph(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Queue them all."""
        ...

    def reset(self) -> None:
        """Give their memory back."""
        ...


class Recorder(Protocol):
    """Makes graphs."""

    def record(self, fn: Callable[[Any], Any], inputs: Any) -> tuple[Graph, Any]:
        """(graph, outputs) of `fn(inputs)`, of which nothing is run."""
        ...

    def forget(self, graph: Graph) -> None:
        """Give a graph back."""
        ...


@dataclass(slots=True)
class GraphPool:
    """The memory that all graphs share. A pool whose last graph is gone is dead: the next graph begins another."""

    _handle: Any = None
    _num_graphs: int = 0

    def take(self) -> Any:
        """The pool's handle, for one more graph."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        self._num_graphs += 1
        return self._handle

    def give_back(self) -> None:
        """One graph less."""
        self._num_graphs -= 1
        if self._num_graphs == 0:
            self._handle = None


class GraphRecorder:
    """Records on the current stream, which is the device's compute stream and not torch's default one."""

    def __init__(self, pool: GraphPool) -> None:
        self._pool = pool

    def record(self, fn: Callable[[Any], Any], inputs: Any) -> tuple[Graph, Any]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        handle = self._pool.take()
        try:
            # thread_local: other threads (loading, metrics) may go on calling the runtime meanwhile
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            outputs = _inside(graph, fn, inputs)
            graph.capture_end()
        except BaseException:
            self._pool.give_back()
            raise
        return graph, outputs

    def forget(self, graph: Graph) -> None:
        graph.reset()
        self._pool.give_back()


def _inside(graph: Any, fn: Callable[[Any], Any], inputs: Any) -> Any:
    """`fn(inputs)` within a capture that ends where it fails; its own error is the one worth telling."""
    try:
        return fn(inputs)
    except BaseException:
        with suppress(RuntimeError):
            graph.capture_end()
        raise


class CaptureExecutable(Executable):
    """num_captures: graphs recorded so far, which are no compilations. compile_ahead: of a function and its steps."""

    kind = ExecutableKind.CAPTURE

    def __init__(
        self, fn: Callable[[Any], Any], *, name: str, recorder: Recorder, compile_ahead: Ahead | None = None
    ) -> None:
        self._fn = fn
        self._compile_ahead = compile_ahead
        self._name = name
        self._recorder = recorder
        self._captured: dict[ShapeKey, tuple[Graph, Any]] = {}
        self._refused: set[ShapeKey] = set()  # keys whose recording failed
        self._num_others = 0  # graphs of other modes than the plain ones
        self._last: tuple[ShapeKey, Callable[[], None], Any] | None = None  # steady steps bring the same key object
        self.num_captures = 0
        self.fingerprint = f"cuda-graph:{name}"

    def compile_ahead(self, steps: Iterable[tuple[ShapeKey, Any]]) -> None:
        if self._compile_ahead is None:
            return
        try:
            self._compile_ahead(self._fn, steps)
        except Exception as error:
            if classify(error) is Fault.LOST:
                raise
            LOG.warning("kernels are compiled where they are first launched: compiling them ahead failed: %s", error)

    def prepare(self, key: ShapeKey, inputs: Any) -> None:
        """Run once eagerly, so that kernels are compiled and workspaces made, then record and replay once."""
        if not key.static or key in self._captured:
            return
        self._fn(inputs)
        self._record(key, inputs)
        if key in self._captured:
            self._captured[key][0].replay()  # the first replay uploads the graph

    def run(self, key: ShapeKey, inputs: Any) -> Any:
        last = self._last
        if last is not None and last[0] is key:
            last[1]()
            return last[2]
        found = self._captured.get(key) if key.static else None
        if found is None:
            outputs = self._fn(inputs)
            if key.static and key not in self._refused and self._has_room(key):
                self._record(key, inputs)
                found = self._captured.get(key)
            if found is not None and isinstance(outputs, torch.Tensor):
                outputs = found[1].copy_(outputs)
            return outputs
        graph, outputs = found
        self._last = (key, graph.replay, outputs)
        graph.replay()
        return outputs

    def release(self) -> None:
        self._last = None
        captured, self._captured = self._captured, {}
        self._refused.clear()
        self._num_others = 0
        for graph, _ in captured.values():
            self._recorder.forget(graph)

    def _has_room(self, key: ShapeKey) -> bool:
        return key.mode in PLAIN_MODES or self._num_others < MOST_OTHER_GRAPHS

    def _record(self, key: ShapeKey, inputs: Any) -> None:
        try:
            with _no_garbage_collection():
                self._captured[key] = self._recorder.record(self._fn, inputs)
        except Exception as error:
            if classify(error) is Fault.LOST:
                raise
            self._refused.add(key)
            LOG.warning("%s at %s runs eagerly: recording it failed: %s", self._name, key, error)
            return
        self.num_captures += 1
        LOG.debug("recorded %s at %s", self._name, key)
        if key.mode not in PLAIN_MODES:
            self._num_others += 1
            if self._num_others == MOST_OTHER_GRAPHS:
                LOG.warning(
                    "%s: %d graphs of steps with penalties, log-probabilities and the like are kept, the most that are:"
                    " what none of them serves runs eagerly",
                    self._name,
                    MOST_OTHER_GRAPHS,
                )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Freeing a tensor of an old cycle inside a capture would void it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
