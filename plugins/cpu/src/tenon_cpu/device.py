"""The device socket of the CPU platform: the host, with its threads, memory-mapped loading and its heap.

Work is synchronous; there is nothing to overlap with, so streams and events stay the contract's null objects.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch

from tenon_platforms.device import Device, LoadPolicy, MemoryInfo, ProcessModel
from tenon_platforms.host_pages import HostPages
from tenon_platforms.pools import Pool

from . import native
from .memory import LARGE_PAGE, reserve_large
from .thread_users import USERS, Wish

KEPT_HEAP_BYTES = 256 * 2**20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
MOST_OF_OLDER_LIBRARIES = 32 * 2**20  # glibc before 2.35 refuses a larger M_MMAP_THRESHOLD


@dataclass(slots=True, kw_only=True)
class CPUDevice(Device):
    """The host. threads: of one step, set when the device is opened and put back when the last one of the process is
    closed. cores: that the native library's threads are bound to, in this order, but for the caller's; empty: the
    system places them.
    """

    threads: int = 1
    cores: tuple[int, ...] = ()
    shares_host_memory: bool = True
    load_policy: LoadPolicy = LoadPolicy.MMAP
    is_rank: bool = False  # it has these cores to itself, and the calling thread stays on them
    _threads_before: int = 0
    _cores_before: frozenset[int] = frozenset()
    _wish: Wish | None = None  # while it is open and there is a native library

    def __post_init__(self) -> None:
        self._pages = HostPages(reserve_large, alignment=LARGE_PAGE)  # the KV cache is read whole in every step
        self.process_model = ProcessModel(
            threads=self.threads, forward_env=("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
        )

    def open(self) -> None:
        is_new = not self._threads_before
        if is_new:
            self._threads_before = torch.get_num_threads()
            if self.is_rank and self.cores and hasattr(os, "sched_setaffinity"):
                self._cores_before = frozenset(os.sched_getaffinity(0))
                os.sched_setaffinity(0, self.cores)
        keep_heap()
        torch.set_num_threads(self.threads)
        self.load_threads = self.threads
        if is_new and native.why_not() is None:
            self._wish = Wish(threads=self.threads, cores=self.cores)
            USERS.enter(self._wish)

    def close(self) -> None:
        if self._threads_before:
            torch.set_num_threads(self._threads_before)
            self._threads_before = 0
        if self._cores_before:
            os.sched_setaffinity(0, self._cores_before)
            self._cores_before = frozenset()
        if self._wish is not None:
            USERS.leave(self._wish)
            self._wish = None
        trim_heap()

    def memory(self) -> MemoryInfo:
        """The host's, once what loading freed is given back: the KV cache is sized by what is free.

        Some 10 ms, and the next step's memory is cleared anew: for sizing, not to be asked again and again.
        """
        trim_heap()
        return Device.memory(self)

    def sleep(self, pools: tuple[Pool, ...]) -> int:
        given_back = Device.sleep(self, pools)
        trim_heap()
        return given_back


def keep_heap() -> None:
    """Let some 256 MiB of freed memory, at the heap's end, wait for the next step, in this process.

    As it comes, the C library gives back each large array of a step with prompts when it is freed: the next layer's has
    to be faulted in and cleared page by page, up to a tenth of the step. So it stays without such a setting (musl).
    """
    if (mallopt := _of_the_c_library("mallopt")) is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_HEAP_BYTES)
        if not mallopt(M_MMAP_THRESHOLD, KEPT_HEAP_BYTES):
            mallopt(M_MMAP_THRESHOLD, MOST_OF_OLDER_LIBRARIES)


def trim_heap() -> None:
    """Give freed memory back to the system: loading leaves as much free heap as the weights were large."""
    if (malloc_trim := _of_the_c_library("malloc_trim")) is not None:
        malloc_trim(0)


def _of_the_c_library(name: str) -> Any:
    """A function that only some C libraries have, or None."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
