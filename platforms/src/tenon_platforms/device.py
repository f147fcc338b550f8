"""The device socket: the only way core touches a device. Defaults describe the host itself.

Streams and events are null objects here; a device that queues work overrides `copy`, `event` and `synchronize`, and
says so with `is_async`. Nothing here may create a context before `open` is called.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .host_pages import HostPages
from .pools import Pool

if TYPE_CHECKING:
    from torch import Tensor


class Fault(str, Enum):
    """What an exception means. REQUEST: this batch's input; RETRYABLE: try the step again; LOST: restart."""

    RETRYABLE = "retryable"
    REQUEST = "request-fatal"
    OUT_OF_MEMORY = "out-of-memory"
    LOST = "device-lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device as its platform's probe sees it, without creating a context. memory: bytes. links: peers' ids.

    driver: its name and version, empty where there is none but the system's.
    """

    id: int
    name: str
    uuid: str = ""
    arch: str = ""
    memory: int = 0
    numa_node: int | None = None
    links: tuple[int, ...] = ()
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Bytes. free and total of the device; peak: most that this process used since `reset_peak`.

    is_host: this is the host's own memory, which every process takes from: what is free is no measure of this one, and
    nobody fills it to see what happens.
    """

    free: int
    total: int
    peak: int
    is_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessModel:
    """How worker processes relate to devices.

    spmd: one process drives all devices and the compiler shards. visibility: environment variable that selects
    devices. forward_env: variables workers need. threads: of the host's math library, None: leave them alone.
    """

    processes_per_device: int = 1
    spmd: bool = False
    visibility: str | None = None
    forward_env: tuple[str, ...] = ()
    threads: int | None = None


class LoadPolicy(str, Enum):
    """How weights best reach the device: used where they are mapped, copied directly, or through pinned staging."""

    MMAP = "mmap"
    DIRECT = "direct"
    STAGING = "staging"


class Event:
    """A point in the device's queue. The null event of a synchronous device is always done."""

    def wait(self) -> None:
        """Block the host until the work before this point is done; raises what that work raised."""

    def is_done(self) -> bool:
        """Whether the work before this point is done."""
        return True


NULL_EVENT = Event()
_IN_INFERENCE: AbstractContextManager[Any] = nullcontext()
HOST = torch.device("cpu")  # where host tensors live


@dataclass(slots=True, kw_only=True)
class Device:
    """One device of this process; the base class is the host. Subclasses override what their hardware does otherwise.

    torch_device: where tensors are made. is_async: launches return before the work is done, so that overlap pays.
    shares_host_memory: host and kernels read and write each other's tensors where they lie, and a call returns when its
    work is done: core copies neither a step's inputs nor its results. Never together with `is_async`.
    load_threads: host threads that may prepare weights at once; more than one where that is work of the host.
    memory_share: of its memory the engine uses unless told otherwise (the host's is shared with everyone).
    """

    info: DeviceInfo = field(default_factory=lambda: DeviceInfo(id=0, name="host"))
    torch_device: Any = field(default_factory=lambda: HOST)
    is_async: bool = False
    shares_host_memory: bool = False
    memory_share: float = 0.4
    load_policy: LoadPolicy = LoadPolicy.MMAP
    load_threads: int = 1
    process_model: ProcessModel = field(default_factory=ProcessModel)
    _pages: HostPages = field(default_factory=HostPages)
    _pool: Pool | None = None  # that `zeros` belong to, inside `pool`
    _cache_sleeps: bool = False

    def open(self) -> None:
        """Make this the process's current device; the first call that may create a context."""

    def close(self) -> None:
        """Give everything back. Repeated open and close work."""

    # memory

    def memory(self) -> MemoryInfo:
        """Current memory of the device."""
        free, total = _host_memory()
        return MemoryInfo(free=free, total=total, peak=_host_peak(), is_host=True)

    def reset_peak(self) -> None:
        """Start a new peak."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialized tensor on the device."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A zeroed tensor on the device. On the host its pages are taken only when they are first written."""
        if self.torch_device == HOST:
            return self._pages.zeros(shape, dtype, self._pool if self._pool is Pool.KV_CACHE else None)
        return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A host tensor that `copy` can read and write without staging (pinned, where that exists)."""
        return torch.empty(shape, dtype=dtype)

    @contextmanager
    def pool(self, pool: Pool) -> Iterator[None]:
        """What this thread allocates inside, in whatever way, belongs to `pool`; may be entered again for more.

        Only an engine that may sleep enters it, and none inside another. `load_threads` is 1 where pools are bound to
        threads. The host's knows the caches that `zeros` made.
        """
        before, self._pool = self._pool, pool
        try:
            yield
        finally:
            self._pool = before

    def sleep(self, pools: tuple[Pool, ...]) -> int:
        """Give these pools' memory back; returns the bytes, 0 where this device keeps all of it (weights on the host).

        Nothing is queued. Tensors keep their addresses, and nobody reads or writes them until `wake`. Raises
        `CapacityError` where what must be kept has no room; then nothing sleeps that did not before. Pools that sleep
        already are passed over.
        """
        if Pool.KV_CACHE not in pools or self._cache_sleeps:
            return 0
        self._cache_sleeps = True
        return self._pages.give_back(Pool.KV_CACHE)

    def wake(self, pools: tuple[Pool, ...]) -> None:
        """Memory for these pools at the same addresses: WEIGHTS as they were, a KV_CACHE that was given back zeroed.

        Raises `CapacityError` where there is none for one of them, which sleeps on with those behind it. Pools that are
        awake are passed over.
        """
        self._cache_sleeps &= Pool.KV_CACHE not in pools

    # work

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy between host and device or on the device. `source` must not change before a later event."""
        target.copy_(source)

    def event(self) -> Event:
        """The present end of the queue."""
        return NULL_EVENT

    def synchronize(self) -> None:
        """Wait for all queued work; raises what it raised."""

    def stream(self, name: str) -> AbstractContextManager[Any]:
        """A named side queue for copies; the null context where there are none."""
        return nullcontext()

    def seed(self, seed: int) -> None:
        """Seed the device's own generator (dummy weights; sampling has its own noise)."""
        torch.manual_seed(seed)

    def profiler_range(self, name: str) -> AbstractContextManager[Any]:
        """A named range in the platform's profiler."""
        return nullcontext()

    def inference_context(self) -> AbstractContextManager[Any]:
        """Entered around the engine's loop, and around each step for those who call without one."""
        return _IN_INFERENCE if torch.is_inference_mode_enabled() else torch.inference_mode()

    def telemetry(self) -> dict[str, float]:
        """Utilization, power, temperature, memory, errors: what the device tells, by name with unit suffix."""
        return {"load_1m": os.getloadavg()[0]} if hasattr(os, "getloadavg") else {}

    def classify_fault(self, error: BaseException) -> Fault:
        """What an exception out of a step means."""
        is_enomem = isinstance(error, OSError) and error.errno == errno.ENOMEM
        if is_enomem or isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return Fault.OUT_OF_MEMORY
        return Fault.REQUEST


def _host_memory() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = page * os.sysconf("SC_AVPHYS_PAGES")
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: the page counts above stand
    limit = _cgroup_limit()
    return min(free, limit), min(total, limit)


def _cgroup_limit() -> int:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        return int(text) if text.isdigit() else 2**63
    except OSError:
        return 2**63


def _host_peak() -> int:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
