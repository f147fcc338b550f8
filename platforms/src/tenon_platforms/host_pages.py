"""Host memory by the page: it costs nothing until it is written, and can be given back while its addresses stay."""

from __future__ import annotations

import math
import mmap
import sys
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

LAZY_BYTES = 2**20  # smaller tensors of no pool are zeroed at once
GIVES_ZEROS = sys.platform == "linux"  # pages that were given back read as zeros


def reserve_pages(size: int) -> mmap.mmap:
    """Fresh memory of this process alone: what others shared could not be given back."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class HostPages:
    """Zeroed host tensors. What is made with a pool's name is known by it for as long as it lives.

    reserve: maps so many bytes of fresh memory. alignment: of a tensor's first byte, where that is more than a page.
    """

    def __init__(self, reserve: Callable[[int], mmap.mmap] | None = None, *, alignment: int = 0) -> None:
        self._reserve = reserve or reserve_pages
        self._alignment = alignment
        self._pools: dict[str, list[weakref.ref[mmap.mmap]]] = {}

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, pool: str | None = None) -> Tensor:
        """A zeroed tensor, whose pages are taken only when they are first written."""
        size = math.prod(shape) * dtype.itemsize
        if size < LAZY_BYTES and pool is None:
            return torch.zeros(shape, dtype=dtype)
        pages = self._reserve(max(size, 1) + self._alignment)
        if pool is not None:
            self._pools.setdefault(pool, []).append(weakref.ref(pages))
        start = 0
        if self._alignment:
            start = -torch.frombuffer(pages, dtype=torch.uint8).data_ptr() % self._alignment
        return torch.frombuffer(pages, dtype=torch.uint8, offset=start)[:size].view(dtype).view(shape)

    def give_back(self, pool: str) -> int:
        """Give the pages of a pool's tensors back to the system: they are zeros again. Bytes, written or not."""
        living = [pages for ref in self._pools.get(pool, ()) if (pages := ref()) is not None]
        self._pools[pool] = [weakref.ref(pages) for pages in living]
        for pages in living:
            if GIVES_ZEROS:
                pages.madvise(mmap.MADV_DONTNEED)
            else:
                torch.frombuffer(pages, dtype=torch.uint8).zero_()
        return sum(map(len, living)) if GIVES_ZEROS else 0
