"""Memory at rest, by meter.

    bytes of the device           in use; not of the host's own memory, which everyone shares
    resident bytes                of this process, in whole pages
    bytes of malloc's heap        host tensors, and what libraries keep books of
    blocks of Python's allocator  objects and their parts

At rest and after the same work all but the resident bytes are the same to the object.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tenon_platforms.device import Device

STATM = Path("/proc/self/statm")
BLOCKS = "blocks of Python's allocator"
HEAP_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"  # of malloc.h, in order

CACHED_SIZES, CACHED_PIECES = range(24, 1033, 16), 7  # of a thread's cache in glibc's malloc, as it comes


def tidy() -> None:
    """Collect garbage, and drop what the interpreter keeps to be fast: names that it looked up."""
    gc.collect()
    clear = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", None)
    if clear is not None:
        clear()


@contextmanager
def settled() -> Iterator[None]:
    """What is there now is not collected again and again: a collection, and a census, look at what is new only.

    Nothing is logged meanwhile: who captures logs, as pytest does, keeps every record.
    """
    gc.collect()
    gc.freeze()
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(silenced)
        gc.unfreeze()


def read_meters(device: Device) -> dict[str, float]:
    """Every meter there is."""
    found: dict[str, int | None] = {"resident bytes": resident_bytes(), "bytes of malloc's heap": heap_bytes()}
    memory = device.memory()
    if not memory.is_host:
        found["bytes of the device"] = memory.total - memory.free
    found[BLOCKS] = sys.getallocatedblocks()
    return {name: float(value) for name, value in found.items() if value is not None}


def resident_bytes() -> int | None:
    """Resident bytes of this process, None where the system does not tell."""
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def heap_bytes() -> int | None:
    """Bytes that are held of malloc, small pieces and mapped ones; None where the C library does not tell."""
    read = _mallinfo()
    if read is None:
        return None
    _fill_thread_cache()
    found = read()
    return int(found.uordblks + found.hblkhd)


class _HeapInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in HEAP_FIELDS.split())


def _fill_thread_cache() -> None:
    """Free as many small pieces of every size as glibc's malloc keeps for this thread, which it counts as held.

    Else what it keeps grows for some hundreds of steps, as one size after the other is freed for the first time.
    """
    c = _allocator()
    for size in CACHED_SIZES:
        for piece in [c.malloc(size) for _ in range(CACHED_PIECES)]:
            c.free(piece)


@cache
def _allocator() -> Any:
    c = ctypes.CDLL(None)
    c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, (ctypes.c_size_t,), (ctypes.c_void_p,)
    return c


@cache
def _mallinfo() -> Callable[[], _HeapInfo] | None:
    """Glibc's mallinfo2, from 2.33 on."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = _HeapInfo
    return function
