"""Memory that is read whole every step: packed weights and the KV cache, in pages of 2 MiB where the system has them.

With pages of 4 KiB a step looks up tens of thousands of them, which costs as much as reading them. Weights are smaller
than a large page, so they lie one after the other in slabs; a slab goes with the last tensor in it. Fresh memory is
zero, and what is never touched is never there.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress

import torch
from torch import Tensor

from tenon_platforms.host_pages import reserve_pages

ALIGNMENT = 64
LARGE_PAGE = 2 * 2**20
SLAB_BYTES = 16 * 2**20


class Slabs:
    """Gives out zeroed memory that was never used before. The slab in use is not held: without tensors it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slab: weakref.ref[mmap.mmap] | None = None
        self._at = self._end = 0

    def take(self, size: int) -> Tensor:
        """uint8 [size], 64-aligned, zero."""
        with self._lock:
            slab = self._slab() if self._slab is not None else None
            if slab is None or size > self._end - self._at:
                slab = self._begin(max(size, SLAB_BYTES))
            piece = torch.frombuffer(slab, dtype=torch.uint8, offset=self._at, count=size)
            self._at += -(-size // ALIGNMENT) * ALIGNMENT
        return piece

    def _begin(self, size: int) -> mmap.mmap:
        slab = reserve_large(size + LARGE_PAGE)
        self._slab = weakref.ref(slab)
        self._at = -torch.frombuffer(slab, dtype=torch.uint8).data_ptr() % LARGE_PAGE
        self._end = self._at + size
        return slab


def reserve_large(size: int) -> mmap.mmap:
    """Fresh memory, in large pages where the system has them."""
    reserved = reserve_pages(size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            reserved.madvise(mmap.MADV_HUGEPAGE)
    return reserved
