"""The device socket of the CUDA platform: one GPU, one compute stream that everything is queued on.

Steps, copies and captures share the compute stream, so their order is the order of the calls and no event is needed
between them; a host buffer is pinned, and torch's allocators keep memory alive until queued work has read it. The
context is created by `open`, never before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tenon_platforms.device import Device, Event, Fault, LoadPolicy, MemoryInfo, ProcessModel
from tenon_platforms.errors import DeviceError
from tenon_platforms.pools import Pool

from . import faults
from .meetings import MEETINGS
from .pools import SleepingPools
from .probe import VISIBILITY
from .staging import StagedCopies
from .streams import STREAMS
from .telemetry import Telemetry

if TYPE_CHECKING:
    from torch import Tensor

STAGED_FROM = 1 << 20  # bytes of a pageable host tensor from which staging it pays
FORWARDED = ("CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_DEBUG")


class CUDAEvent(Event):
    """A point in the compute stream. An error of the work before it is raised by `wait`."""

    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()

    def is_done(self) -> bool:
        return bool(self._event.query())


@dataclass(slots=True, kw_only=True)
class CUDADevice(Device):
    """One GPU. is_async: launches return before the work is done."""

    is_async: bool = True
    memory_share: float = 0.9
    load_policy: LoadPolicy = LoadPolicy.STAGING
    process_model: ProcessModel = field(
        default_factory=lambda: ProcessModel(visibility=VISIBILITY, forward_env=FORWARDED)
    )
    _stream: Any = None  # filled by `open`, as are the following
    _side_streams: dict[str, Any] = field(default_factory=dict)
    _staged: StagedCopies | None = None
    _meeting: Tensor | None = None
    _pools: SleepingPools | None = None  # of an engine that may sleep
    _telemetry: Telemetry | None = None

    def open(self) -> None:
        if self._stream is not None:
            return
        if not torch.cuda.is_available():
            raise DeviceError(
                f"torch {torch.__version__} cannot use the GPU"
                f" ({'it is a build without CUDA' if torch.version.cuda is None else 'no driver answers it'})",
                remedy="install a CUDA build of torch whose version the driver supports (nvidia-smi shows the driver),"
                " or run on the host with --platform cpu",
            )
        torch.cuda.set_device(self.torch_device)
        self._stream = STREAMS.lend(self.torch_device)
        torch.cuda.set_stream(self._stream)
        # float32 means float32: the reduced formats are asked for by a model's dtype
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._staged = StagedCopies(self.host_buffer)

    def close(self) -> None:
        if self._stream is None:
            return
        if torch.cuda.current_stream(self.torch_device) == self._stream:
            torch.cuda.set_stream(torch.cuda.default_stream(self.torch_device))
        STREAMS.take_back(self.torch_device, self._stream, *self._side_streams.values())
        if self._meeting is not None:
            MEETINGS.take_back(self.torch_device)
        self._stream = self._staged = self._meeting = None
        self._side_streams.clear()
        if self._pools is not None:
            self._pools.close()
            self._pools = None
        if self._telemetry is not None:
            self._telemetry.close()
            self._telemetry = None
        torch.cuda.empty_cache()

    def meeting(self) -> Tensor | None:
        """A counter for launches whose programs wait for each other, until `close`; None: there is none for it."""
        if self._meeting is None:
            self._meeting = MEETINGS.lend(self.torch_device)
        return self._meeting

    # memory

    def memory(self) -> MemoryInfo:
        """What torch holds without using it counts as free: its allocator reuses it or gives it back."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        unused = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        unused -= 0 if self._pools is None else self._pools.idle_bytes()
        peak = torch.cuda.max_memory_allocated(self.torch_device)
        return MemoryInfo(free=free + unused, total=total, peak=peak)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    @contextmanager
    def pool(self, pool: Pool) -> Iterator[None]:
        self.meeting()  # it outlives this engine, and so must lie outside of its pools
        if self._pools is None:
            self._pools = SleepingPools(
                device=self.torch_device, host_buffer=self.host_buffer, synchronize=self.synchronize
            )
        with self._pools.fill(pool):
            yield

    def sleep(self, pools: tuple[Pool, ...]) -> int:
        return 0 if self._pools is None else self._pools.sleep(pools)

    def wake(self, pools: tuple[Pool, ...]) -> None:
        if self._pools is not None:
            self._pools.wake(pools)

    # work

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Pinned sources are read when the queue comes to them; a pageable one has been read when this returns."""
        pageable = source.device.type == "cpu" and source.nbytes >= STAGED_FROM and not source.is_pinned()
        if not (pageable and self._staged is not None and self._staged.copy(target, source)):
            target.copy_(source, non_blocking=True)

    def event(self) -> Event:
        event = torch.cuda.Event()
        event.record(self._stream)
        return CUDAEvent(event)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    @contextmanager
    def stream(self, name: str) -> Iterator[Any]:
        """Work queued inside comes after what is queued now; who needs its results waits for an event of it."""
        side = self._side_streams.get(name)
        if side is None:
            side = self._side_streams[name] = STREAMS.lend(self.torch_device)
        side.wait_stream(self._stream)
        with torch.cuda.stream(side):
            yield side

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)

    def profiler_range(self, name: str) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.nvtx.range(name)
        return context

    def inference_context(self) -> AbstractContextManager[Any]:
        if torch.cuda.current_stream() == self._stream:  # as in a step, inside the engine's loop
            return Device.inference_context(self)
        return _OnStream(self._stream)

    def telemetry(self) -> dict[str, float]:
        if self._telemetry is None:
            self._telemetry = Telemetry(self.info.uuid)
        return self._telemetry.read()

    def classify_fault(self, error: BaseException) -> Fault:
        return faults.classify(error)


class _OnStream:
    """Inference mode on the compute stream, in whichever thread it is entered; a few microseconds a step."""

    __slots__ = ("_before", "_inference", "_stream")

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._before: Any = None
        self._inference = torch.inference_mode()

    def __enter__(self) -> None:
        self._inference.__enter__()
        if self._stream is not None:
            before = torch.cuda.current_stream()
            if before != self._stream:
                self._before = before
                torch.cuda.set_stream(self._stream)

    def __exit__(self, *error: Any) -> None:
        if self._before is not None:
            torch.cuda.set_stream(self._before)
        self._inference.__exit__(*error)
