"""The CPU tape: a decode step's native kernel calls, recorded once a lattice key and replayed by one native call.

While the step's function runs for the first time, the library records every kernel it is asked for, and a dispatch mode
watches torch: allocations come from the tape's arena, views pass, the few index operations that stand between kernels
are recorded as kernels. Any other torch operation cannot be replayed, and its key is run eagerly from then on; the log
says once which one it was. Replay is the same calls on the same memory, so its bits are those of the first run.
"""

from __future__ import annotations

import ctypes
import logging
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tenon_platforms.execution import Executable, ExecutableKind
from tenon_platforms.shapes import ShapeKey

from . import native, recorded_ops

LOG = logging.getLogger(__name__)
ALIGNMENT = 64
SLAB_BYTES = 4 * 2**20


@dataclass(slots=True)
class Arena:
    """Memory of what a step makes between its kernels. A piece is free again once no tensor lies in it."""

    _slabs: list[Tensor] = field(default_factory=list)
    _next: int = 0
    _end: int = 0
    _free: dict[int, list[int]] = field(default_factory=dict)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor; equal sizes reuse each other's memory, as layers follow each other."""
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        size = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        free = self._free.setdefault(size, [])
        address = free.pop() if free else self._take(size)
        piece = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(piece, free.append, address).atexit = False
        return torch.frombuffer(piece, dtype=dtype, count=count).view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(slab.nbytes for slab in self._slabs)

    def _take(self, size: int) -> int:
        if self._next + size > self._end:
            slab = torch.empty(max(size, SLAB_BYTES) + ALIGNMENT, dtype=torch.uint8)
            self._slabs.append(slab)
            self._next = -(-slab.data_ptr() // ALIGNMENT) * ALIGNMENT
            self._end = slab.data_ptr() + slab.nbytes
        self._next += size
        return self._next - size


class Recorder(TorchDispatchMode):
    """Watches torch while a tape records. refused: the first operation that cannot be replayed."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused: str | None = None
        self.kept: list[Any] = []
        self._arena = arena

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and torch's guard against it imports its compiler: 2 s of the start

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.refused is None:
            found = recorded_ops.record(func, args, kwargs, self._arena.empty)
            if found is not recorded_ops.NOT_RECORDED:
                self.kept.append(args)  # the index tensors and tables that the calls read
                return found
        result = func(*args, **kwargs)
        if self.refused is None and not _is_view(func, result, args):
            self.refused = str(func)
        return result


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call of a replay. name: as the library exports the kernel. params: address of its struct, the tape's."""

    name: str
    params: int
    seconds: float


@dataclass(slots=True)
class Tape:
    """One key's calls. handle: the library's. outputs, kept: what the calls point into."""

    handle: int
    num_calls: int
    outputs: Any
    kept: Any

    def replay(self) -> Any:
        """The outputs, computed anew."""
        if status := _function("tenon_tape_replay", ctypes.c_void_p)(self.handle):
            native.check(status, "replaying a step")
        return self.outputs

    def time(self) -> list[TimedCall]:
        """A replay that says how long each call took; for who asks where a step's time goes."""
        took = (ctypes.c_int64 * self.num_calls)()
        replay = _function("tenon_tape_replay_timed", ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))
        native.check(replay(self.handle, took), "replaying a step")
        return [TimedCall(*self._call(index), seconds=took[index] * 1e-9) for index in range(self.num_calls)]

    def free(self) -> None:
        """Give the calls back."""
        _function("tenon_tape_free", ctypes.c_void_p)(self.handle)

    def _call(self, index: int) -> tuple[str, int]:
        """(name, address of its parameters) of a call."""
        name_of = _function("tenon_tape_call", ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p))
        name_of.restype = ctypes.c_char_p
        params = ctypes.c_void_p()
        name = name_of(self.handle, index, ctypes.byref(params))
        return name.decode(), params.value or 0


class TapeExecutable(Executable):
    """Replays static keys from tapes and runs the others. refused: keys that no executable of this platform records."""

    kind = ExecutableKind.CAPTURE

    def __init__(self, fn: Callable[[Any], Any], *, name: str, refused: dict[ShapeKey, str]) -> None:
        self._fn = fn
        self._name = name
        self._refused = refused
        self._arena = Arena()
        self._tapes: dict[ShapeKey, Tape] = {}

    @property
    def num_tapes(self) -> int:
        """Keys that are replayed."""
        return len(self._tapes)

    def tape(self, key: ShapeKey) -> Tape | None:
        """What is replayed for a key, if it is."""
        return self._tapes.get(key)

    def prepare(self, key: ShapeKey, inputs: Any) -> None:
        self.run(key, inputs)

    def run(self, key: ShapeKey, inputs: Any) -> Any:
        tape = self._tapes.get(key)
        if tape is not None:
            return tape.replay()
        if not key.static or key in self._refused:
            return self._fn(inputs)
        return self.record(key, inputs)

    def release(self) -> None:
        for tape in self._tapes.values():
            tape.free()
        self._tapes.clear()
        self._arena = Arena()

    def record(self, key: ShapeKey, inputs: Any) -> Any:
        """The outputs, and from now on the key's tape: a replay reads the tensors of these very inputs."""
        recorder = Recorder(self._arena)
        begin = _function("tenon_tape_begin")
        begin.restype = ctypes.c_void_p
        handle, num_calls = begin(), 0
        try:
            with recorder:
                outputs = self._fn(inputs)
        except BaseException:
            _function("tenon_tape_end")()
            _function("tenon_tape_free", ctypes.c_void_p)(handle)
            raise
        num_calls = _function("tenon_tape_end")()
        tape = Tape(handle=handle, num_calls=num_calls, outputs=outputs, kept=(inputs, recorder.kept))
        if recorder.refused is None:
            self._tapes[key] = tape
            LOG.debug("%s of %s recorded: %d calls, arena %d bytes", self._name, key, num_calls, self._arena.nbytes)
        else:
            tape.free()
            if not any(reason == recorder.refused for reason in self._refused.values()):
                LOG.warning("decode steps run eagerly: %s has no native kernel", recorder.refused)
            self._refused[key] = recorder.refused
        return outputs


def _is_view(func: Any, result: Any, args: Any) -> bool:
    """Whether an operation computed nothing: all its results lie in memory of its arguments."""
    if func._schema.is_mutable:
        return False
    mine = {part.untyped_storage().data_ptr() for part in args if isinstance(part, Tensor)}
    parts = result if isinstance(result, (list, tuple)) else (result,)
    return all(not isinstance(part, Tensor) or part.untyped_storage().data_ptr() in mine for part in parts)


@cache
def _function(name: str, *arguments: Any) -> Any:
    return native.function(name, *arguments)
