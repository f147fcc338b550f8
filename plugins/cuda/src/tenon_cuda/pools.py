"""Pools of device memory that sleep: torch's allocator takes their segments from `pools.c`, which can empty them.

    filling   torch's caching allocator -> segments of the pool, addresses reserved and backed
    asleep    the segments' memory is the device's again; weights lie in pinned memory of the host, which is kept after
              waking: pinning takes far longer than copying
    awake     other memory at the same addresses, so that tensors and captured graphs stay valid

A pool's memory is counted by torch as its own, asleep or not. Costs a C compiler's run (0.1 s) where it is asked for.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tenon_platforms.errors import CapacityError, DeviceError, PluginError
from tenon_platforms.pools import Pool

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = Path(__file__).with_name("pools.c")
DRIVER = b"libcuda.so.1"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-shared", "-fPIC")
BUILD_SECONDS = 60
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
CHUNK_BYTES = 64 << 20  # torch rounds what it pins up to a power of two
NUMBERS = itertools.count()  # of pools, in this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The compiled source's calls, and torch's allocator over it."""

    calls: Any
    allocator: Any

    def segments(self, number: int) -> list[tuple[int, int]]:
        """(address, bytes) of a pool's segments."""
        count = self.calls.tenon_pools_segments(number, None, None, 0)
        addresses, sizes = (ctypes.c_ulonglong * count)(), (ctypes.c_size_t * count)()
        self.calls.tenon_pools_segments(number, addresses, sizes, count)
        return list(zip(addresses, sizes, strict=True))


@lru_cache(maxsize=1)
def library() -> Library:
    """Compile, load, and find the driver. Raises `PluginError` where one of them fails."""
    with tempfile.TemporaryDirectory(prefix="tenon-pools-") as folder:
        file = compiled(Path(folder))
        calls = ctypes.CDLL(str(file))
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(file), "tenon_pools_allocate", "tenon_pools_free")
    calls.tenon_pools_segments.restype = ctypes.c_size_t
    calls.tenon_pools_segments.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    if calls.tenon_pools_open(DRIVER):
        raise PluginError(
            f"{DRIVER.decode()} has no virtual memory management, which sleeping needs",
            remedy="update the driver, or leave out --enable-sleep-mode",
        )
    return Library(calls=calls, allocator=allocator.allocator())


def compiled(folder: Path) -> Path:
    """The library, built in `folder`. Raises `PluginError`."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise PluginError(
            f"no C compiler was found ({', '.join(COMPILERS)}), which sleep mode needs once at the start",
            remedy="install one (apt install gcc), or leave out --enable-sleep-mode",
        )
    file = folder / "pools.so"
    command = [compiler, *FLAGS, "-o", str(file), str(SOURCE), "-ldl", "-lpthread"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise PluginError(
            f"{compiler} could not build {SOURCE.name}: {said[:400]}",
            remedy="install a working C compiler, or leave out --enable-sleep-mode",
        ) from error
    return file


class Segment:
    """A segment's bytes, as torch takes them from other libraries."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def segment_bytes(address: int, size: int, device: torch.device) -> Tensor:
    """uint8 [size] over a segment."""
    return torch.as_tensor(Segment(address, size), device=device)


@dataclass(slots=True, kw_only=True)
class SleepingPool:
    """One pool. kept: on the host, what its segments `laid` held, one after the other; from the first sleep on."""

    number: int = field(default_factory=lambda: next(NUMBERS))
    memory: Any  # torch.cuda.MemPool
    is_asleep: bool = False
    kept: list[Tensor] = field(default_factory=list)
    laid: list[tuple[int, int]] = field(default_factory=list)  # (address, bytes)


@dataclass(slots=True, kw_only=True)
class SleepingPools:
    """The pools of one device. host_buffer: makes pinned memory; synchronize: waits for the device."""

    device: torch.device
    host_buffer: Callable[[tuple[int, ...], torch.dtype], Tensor]
    synchronize: Callable[[], None]
    find_library: Callable[[], Library] = library
    new_memory: Callable[[Any], Any] = torch.cuda.MemPool
    view: Callable[[int, int, torch.device], Tensor] = segment_bytes
    _pools: dict[Pool, SleepingPool] = field(default_factory=dict)

    @contextmanager
    def fill(self, pool: Pool) -> Iterator[None]:
        """What this thread allocates on the device inside belongs to `pool`."""
        library = self.find_library()
        filled = self._pools.get(pool)
        if filled is None:
            filled = self._pools[pool] = SleepingPool(memory=self.new_memory(library.allocator))
        assert not filled.is_asleep, "a pool is filled while it is awake"
        library.calls.tenon_pools_fill(filled.number)
        try:
            with torch.cuda.use_mem_pool(filled.memory, self.device):
                yield
        finally:
            library.calls.tenon_pools_fill(-1)

    def idle_bytes(self) -> int:
        """What the pools hold and do not use, such as the memory of intermediates: nobody else can."""
        segments = [segment for pool in self._pools.values() for segment in pool.memory.snapshot()]
        return sum(segment["total_size"] - segment["allocated_size"] for segment in segments)

    def sleep(self, pools: Sequence[Pool]) -> int:
        """As `Device.sleep`."""
        awake = {pool: held for pool in pools if (held := self._pools.get(pool)) and not held.is_asleep}
        if not awake:
            return 0
        self.synchronize()
        if Pool.WEIGHTS in awake:
            self._keep(awake[Pool.WEIGHTS])
        given_back = 0
        for held in awake.values():
            given_back += sum(size for _, size in self.find_library().segments(held.number))
            self._check(self.find_library().calls.tenon_pools_unmap(held.number), "given back")
            held.is_asleep = True
        torch.cuda.empty_cache()  # what steps left behind, too
        return given_back

    def wake(self, pools: Sequence[Pool]) -> None:
        """As `Device.wake`."""
        for pool in pools:
            held = self._pools.get(pool)
            if held is None or not held.is_asleep:
                continue
            self._check(self.find_library().calls.tenon_pools_map(held.number), f"had for {pool.value} again")
            held.is_asleep = False
            if pool is Pool.WEIGHTS:
                self._restore(held)
            else:
                for view in self._views(held):
                    view.zero_()
            self.synchronize()

    def close(self) -> None:
        """Forget the pools; their memory goes with the last tensor in it."""
        self._pools.clear()
        release_pinned()

    def _views(self, held: SleepingPool) -> list[Tensor]:
        return [self.view(*segment, self.device) for segment in self.find_library().segments(held.number)]

    def _restore(self, held: SleepingPool) -> None:
        """Segments that were freed meanwhile have their places on the host, and nobody wants what lies there."""
        living = set(self.find_library().segments(held.number))
        views = [
            self.view(address, size, self.device)
            if (address, size) in living
            else torch.empty(size, dtype=torch.uint8, device="meta")
            for address, size in held.laid
        ]
        for on_device, on_host in pieces(views, held.kept):
            on_device.copy_(on_host, non_blocking=True)

    def _keep(self, held: SleepingPool) -> None:
        held.laid = self.find_library().segments(held.number)
        views = [self.view(*segment, self.device) for segment in held.laid]
        size = sum(view.numel() for view in views)
        missing = -(-size // CHUNK_BYTES) - len(held.kept)
        try:
            with torch.inference_mode(False):  # else they could be written to in that mode alone
                held.kept += [self.host_buffer((CHUNK_BYTES,), torch.uint8) for _ in range(missing)]
        except (RuntimeError, MemoryError) as error:
            release_pinned()
            raise CapacityError(
                f"the host has no room for the weights' {size} bytes, pinned: {str(error).partition(chr(10))[0]}",
                remedy="free host memory, or raise the limit of locked memory (ulimit -l)",
            ) from error
        for on_device, on_host in pieces(views, held.kept):
            on_host.copy_(on_device, non_blocking=True)
        self.synchronize()

    def _check(self, error: int, what: str) -> None:
        if error == OUT_OF_MEMORY:
            free, total = torch.cuda.mem_get_info(self.device)
            raise CapacityError(
                f"the memory could not be {what}: {free} of {total} bytes are free on {self.device}",
                remedy="end what else uses the device, then wake it up again",
            )
        if error:
            raise DeviceError(f"the memory could not be {what}: the driver's error {error}")


def pieces(views: Sequence[Tensor], chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of `views` beside the parts of `chunks` that hold them, all laid one after the other; uint8."""
    places = iter(chunks)
    chunk = next(places, None)
    for view in views:
        while view.numel():
            assert chunk is not None, "the chunks hold all views"
            count = min(view.numel(), chunk.numel())
            yield view[:count], chunk[:count]
            view, chunk = view[count:], chunk[count:]
            if not chunk.numel():
                chunk = next(places, None)


def release_pinned() -> None:
    """Give pinned memory that nothing uses back to the host."""
    empty_cache = getattr(torch._C, "_host_emptyCache", None)
    if empty_cache is not None:
        empty_cache()
