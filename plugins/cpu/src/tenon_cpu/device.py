"""The device socket of the CPU platform: the host, with its threads, memory-mapped loading and heap trimming.

Work is synchronous; there is nothing to overlap with, so streams and events stay the contract's null objects.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

import torch

from tenon_platforms.device import Device, LoadPolicy, ProcessModel

from . import native
from .thread_users import USERS, Wish


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
    _threads_before: int = 0
    _wish: Wish | None = None  # while it is open and there is a native library

    def __post_init__(self) -> None:
        self.process_model = ProcessModel(
            threads=self.threads, forward_env=("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
        )

    def open(self) -> None:
        is_new = not self._threads_before
        if is_new:
            self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        self.load_threads = self.threads
        if is_new and native.why_not() is None:
            self._wish = Wish(threads=self.threads, cores=self.cores)
            USERS.enter(self._wish)

    def close(self) -> None:
        if self._threads_before:
            torch.set_num_threads(self._threads_before)
            self._threads_before = 0
        if self._wish is not None:
            USERS.leave(self._wish)
            self._wish = None
        trim_heap()

    def sleep(self, tags: tuple[str, ...]) -> bool:
        trim_heap()
        return False


def trim_heap() -> None:
    """Give freed memory back to the system: loading leaves as much free heap as the weights were large."""
    if sys.platform == "linux":
        try:
            trim = ctypes.CDLL(None).malloc_trim
        except AttributeError:  # a C library without it (musl)
            return
        trim(0)
