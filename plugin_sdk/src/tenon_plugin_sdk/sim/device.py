"""The simulated device: host tensors behind an asynchronous queue, with its own memory budget and no 64-bit integers.

A copy reads its source when the queue comes to it, so a host buffer that is overwritten too early shows as wrong
tokens; a host buffer that is the target of a queued copy holds garbage until then, so reading too early shows too.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.device import NULL_EVENT, Device, DeviceInfo, Event, Fault, MemoryInfo

from .faults import BrokenContractError, SimFaultError
from .options import SimOptions
from .queue import WorkQueue

WIDE = (torch.int64, torch.float64)
GARBAGE_BYTES = (0x40, 0x5F)  # repeated, such a byte is finite in every float type and far outside any vocabulary


@dataclass(slots=True, kw_only=True)
class SimDevice(Device):
    """One simulated device. num_compiles: of kernels launched outside executables, one a new combination of shapes."""

    options: SimOptions = field(default_factory=SimOptions)
    info: DeviceInfo = field(default_factory=lambda: DeviceInfo(id=0, name="simulated accelerator", arch="sim"))
    memory_share: float = 0.9
    num_compiles: int = 0
    _queue: WorkQueue | None = None
    _used: int = 0
    _peak: int = 0
    _shapes: set[tuple[Any, ...]] = field(default_factory=set)
    _host: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)  # storage address -> host buffer
    _num_steps: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def open(self) -> None:
        if self.is_async and self._queue is None:
            self._queue = WorkQueue()

    def close(self) -> None:
        if self._queue is not None:
            self._queue.stop()
            self._queue = None

    # memory

    def memory(self) -> MemoryInfo:
        total = self.options.memory_mb << 20
        return MemoryInfo(free=total - self._used, total=total, peak=self._peak)

    def reset_peak(self) -> None:
        self._peak = self._used

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = self.allocate(shape, dtype)
        self._spoil(tensor)
        return tensor

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.allocate(shape, dtype).zero_()

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        check_narrow("a host buffer", dtype)
        buffer = torch.empty(shape, dtype=dtype)
        if buffer.numel():
            self._spoil(buffer)
            self._host[buffer.untyped_storage().data_ptr()] = weakref.ref(buffer)
        return buffer

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the device, counted against its budget until the tensor is gone."""
        check_narrow("device memory", dtype)
        count = dtype.itemsize
        for size in shape:
            count *= size
        with self._lock:
            if self._used + count > self.options.memory_mb << 20:
                raise SimFaultError(
                    f"can't allocate memory: {count} bytes asked for, {self._used} of {self.options.memory_mb} MiB"
                    " are in use",
                    Fault.OUT_OF_MEMORY,
                    remedy="raise --platform-opt sim.memory_mb",
                )
            self._used += count
            self._peak = max(self._peak, self._used)
        tensor = torch.empty(shape, dtype=dtype)
        weakref.finalize(tensor, self._give_back, count).atexit = False
        return tensor

    def _give_back(self, count: int) -> None:
        self._used -= count  # no lock: it runs in the collector, maybe inside `allocate`

    # work

    def copy(self, target: Tensor, source: Tensor) -> None:
        if target.shape != source.shape or target.dtype != source.dtype:
            raise BrokenContractError(
                f"copy of {source.dtype} {list(source.shape)} to {target.dtype} {list(target.shape)}:"
                " a copy changes neither type nor shape"
            )
        check_narrow("a copy", source.dtype)
        from_host = self._is_host_buffer(source)
        if self._is_host_buffer(target) and self._queue is not None:
            self._spoil(target)

        def work() -> None:
            if from_host:
                self.lag()
            target.copy_(source)

        self.submit(work)

    def event(self) -> Event:
        return NULL_EVENT if self._queue is None else self._queue.event()

    def synchronize(self) -> None:
        self.event().wait()

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        yield  # one queue only

    def classify_fault(self, error: BaseException) -> Fault:
        return error.fault if isinstance(error, SimFaultError) else Device.classify_fault(self, error)

    # what the other sockets of this platform use

    @property
    def is_worker(self) -> bool:
        """Whether the caller already is the device's queue, or there is none."""
        return self._queue is None or self._queue.is_current

    def submit(self, work: Callable[[], None]) -> None:
        """Queue work; where there is no queue, do it."""
        if self._queue is None:
            with torch.inference_mode():
                work()
        elif self._queue.is_current:
            work()
        else:
            self._queue.put(work)

    def launch(self, name: str, fn: Callable[..., None], *tensors: Tensor) -> None:
        """A kernel between executables: queued, and compiled where these shapes are new to it."""
        if self.options.character == "static":
            shapes = (name, *((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
            if shapes not in self._shapes:
                self._shapes.add(shapes)
                self.num_compiles += 1
        self.submit(lambda: fn(*tensors))

    def lag(self) -> None:
        """The device's slowness."""
        if self.options.delay_ms:
            time.sleep(self.options.delay_ms / 1000)

    def count_step(self) -> None:
        """One more step; raises where the options say that this one fails."""
        self._num_steps += 1
        if self._num_steps == self.options.fault_step:
            raise SimFaultError(f"simulated fault in step {self._num_steps}", self.options.fault)

    def _spoil(self, tensor: Tensor) -> None:
        """Fill with garbage, at once: what nobody has written yet must look like it."""
        low, high = GARBAGE_BYTES
        byte = random.Random(self.options.seed).randint(low, high)
        tensor.fill_(torch.full((tensor.element_size(),), byte, dtype=torch.uint8).view(tensor.dtype)[0].item())

    def _is_host_buffer(self, tensor: Tensor) -> bool:
        if not tensor.numel():
            return False
        held = self._host.get(tensor.untyped_storage().data_ptr())
        return held is not None and held() is not None


def check_narrow(what: str, dtype: torch.dtype) -> None:
    """Raise for the types this device does not have."""
    if dtype in WIDE:
        raise BrokenContractError(f"{what} of {dtype}: this device has no 64-bit numbers", remedy="use 32-bit ones")
