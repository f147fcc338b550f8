"""The library, loaded once in a process: it registers the torch device `sim`, and answers a few calls by ctypes.

torch has one free place for a device that is not its own, so another such device in this process is an error.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils import backend_registration

from tenon_platforms.errors import PluginError

from .build import library_file
from .torch_module import SimModule

ABI = 2
NAME = "sim"
FREE = "privateuseone"  # what torch calls the place until somebody takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """Bytes of one device's memory. damaged: buffers whose guard zones had been written to when they were freed."""

    used: int
    peak: int
    damaged: int


class Native:
    """The library's calls. None of them holds Python's lock."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.tenon_sim_configure.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int)
        self.set_worker: Any = library.tenon_sim_set_worker  # this thread is a queue: it waits for none
        self.pending: Any = library.tenon_sim_pending  # so many works more (or fewer) are queued
        self.wait: Any = library.tenon_sim_wait  # until nothing is queued
        self.fill_pool: Any = library.tenon_sim_fill_pool  # what this thread allocates belongs to it; 0: to none
        self.wake_pool: Any = library.tenon_sim_wake_pool  # (device, tag): whether there was room
        self.sleep_pool: Any = library.tenon_sim_sleep_pool  # (device, tag, keeps): bytes
        self.sleep_pool.restype = ctypes.c_int64
        self.num_devices: Any = library.tenon_sim_num_devices
        self.reset_peak: Any = library.tenon_sim_reset_peak

    def configure(self, index: int, *, limit: int, garbage: int) -> None:
        """Memory of device `index` in bytes, and the byte that new memory is full of."""
        self._library.tenon_sim_configure(index, limit, garbage)

    def memory(self, index: int) -> PoolState:
        """Of device `index`, now."""
        out = (ctypes.c_int64 * 3)()
        self._library.tenon_sim_memory(index, out)
        return PoolState(used=out[0], peak=out[1], damaged=out[2])


@lru_cache(maxsize=1)
def native() -> Native:
    """Build where needed, load, and name the device; raises PluginError."""
    taken = torch._C._get_privateuse1_backend_name()
    if taken != FREE:
        raise PluginError(
            f"torch's place for a further device is taken by {taken!r} in this process",
            remedy="run the simulated device in a process of its own",
        )
    file = library_file()
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise PluginError(f"{file} cannot be loaded: {error}", remedy=f"remove {file} and start again") from error
    if (found := library.tenon_sim_abi()) != ABI:
        raise PluginError(f"{file} has ABI {found}, this tenon-sim needs {ABI}", remedy=f"remove {file}")
    made = Native(library)
    backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, SimModule(num_devices=made.num_devices, wait=made.wait))
    backend_registration.generate_methods_for_privateuse1_backend(for_module=False, for_storage=False)
    return made
