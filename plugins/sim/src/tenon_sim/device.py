"""The simulated device: torch's `sim` behind an asynchronous queue, with memory of its own and no 64-bit numbers.

Tensors are of device type `sim` (see `native/`), so the host reads none by accident; an operation that it launches
itself comes after all queued work. A copy reads its source when the queue comes to it, so a host buffer overwritten too
early shows as wrong tokens; one that is the target of a queued copy holds garbage until then.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from tenon_platforms.device import NULL_EVENT, Device, DeviceInfo, Event, Fault, MemoryInfo
from tenon_platforms.errors import CapacityError
from tenon_platforms.pools import Pool

from .faults import BrokenContractError, SimFaultError
from .native import FREE, native
from .options import SimOptions
from .queue import WorkQueue

WIDE = (torch.int64, torch.float64)
POOL_TAGS = itertools.count(1)  # in this process; the library's pool 0 is none, and never sleeps
GARBAGE_BYTES = (0x40, 0x5F)  # repeated, such a byte is finite in every float type and far outside any vocabulary


@dataclass(slots=True, kw_only=True)
class SimDevice(Device):
    """One simulated device. num_compiles: of kernels launched outside executables, one a new combination of shapes."""

    options: SimOptions = field(default_factory=SimOptions)
    info: DeviceInfo = field(default_factory=lambda: DeviceInfo(id=0, name="simulated accelerator", arch="sim"))
    memory_share: float = 0.9
    num_compiles: int = 0
    _queue: WorkQueue | None = None
    _num_damaged: int = 0
    _shapes: set[tuple[Any, ...]] = field(default_factory=set)
    _host: WeakValueDictionary[int, Tensor] = field(default_factory=WeakValueDictionary)  # storage address -> buffer
    _num_steps: int = 0
    _pool_tags: dict[Pool, int] = field(default_factory=lambda: {pool: next(POOL_TAGS) for pool in Pool})  # its own

    def __post_init__(self) -> None:
        self.torch_device = torch.device(FREE, self.info.id)  # the name is torch's until a device opens

    def open(self) -> None:
        low, high = GARBAGE_BYTES
        garbage = random.Random(self.options.seed).randint(low, high)
        native().configure(self.info.id, limit=self.options.memory_mb << 20, garbage=garbage)
        self._num_damaged = native().memory(self.info.id).damaged
        if self.is_async and self._queue is None:
            self._queue = WorkQueue(native())

    def close(self) -> None:
        if self._queue is not None:
            self._queue.stop()
            self._queue = None

    # memory

    def memory(self) -> MemoryInfo:
        total, now = self.options.memory_mb << 20, native().memory(self.info.id)
        return MemoryInfo(free=max(total - now.used, 0), total=total, peak=now.peak)

    def reset_peak(self) -> None:
        native().reset_peak(self.info.id)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        check_narrow("device memory", dtype)
        try:
            return torch.empty(shape, dtype=dtype, device=self.torch_device)  # the library fills it with garbage
        except torch.OutOfMemoryError as error:
            message = str(error).partition("\n")[0]
            remedy = "raise --platform-opt sim.memory_mb"
            raise SimFaultError(message, Fault.OUT_OF_MEMORY, remedy=remedy) from error

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.empty(shape, dtype).zero_()

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        check_narrow("a host buffer", dtype)
        buffer = torch.empty(shape, dtype=dtype)
        if buffer.numel():
            self._spoil(buffer)
            self._host[buffer.untyped_storage().data_ptr()] = buffer
        return buffer

    @contextmanager
    def pool(self, pool: Pool) -> Iterator[None]:
        native().fill_pool(self._pool_tags[pool])
        try:
            yield
        finally:
            native().fill_pool(0)

    def sleep(self, pools: tuple[Pool, ...]) -> int:
        self.synchronize()
        keeps = {pool: pool is Pool.WEIGHTS for pool in pools}
        return sum(native().sleep_pool(self.info.id, self._pool_tags[pool], kept) for pool, kept in keeps.items())

    def wake(self, pools: tuple[Pool, ...]) -> None:
        for pool in pools:
            if not native().wake_pool(self.info.id, self._pool_tags[pool]):
                raise CapacityError(
                    f"the simulated device has no room for {pool.value} again",
                    remedy="free what was allocated meanwhile, and wake it up again",
                )

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
        # inside an executable, all work before this point is done
        return NULL_EVENT if self._queue is None or self._queue.is_current else self._queue.event()

    def synchronize(self) -> None:
        self.event().wait()
        damaged, self._num_damaged = self._num_damaged, native().memory(self.info.id).damaged
        if damaged != self._num_damaged:
            raise BrokenContractError(
                f"{self._num_damaged - damaged} buffers were written to outside their ends since the last call",
                remedy="look for a kernel that computes addresses from unchecked indices",
            )

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
        return bool(tensor.numel()) and tensor.untyped_storage().data_ptr() in self._host


def check_narrow(what: str, dtype: torch.dtype) -> None:
    """Raise for the types this device does not have."""
    if dtype in WIDE:
        raise BrokenContractError(f"{what} of {dtype}: this device has no 64-bit numbers", remedy="use 32-bit ones")
