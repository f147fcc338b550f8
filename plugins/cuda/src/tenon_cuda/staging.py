"""Copies of large pageable host tensors (mapped checkpoint files) through two pinned buffers.

    host pages --memcpy--> buffer A ~~copy engine~~> device
    host pages --memcpy--> buffer B ~~copy engine~~> device        while A is still on its way

A plain copy of pageable memory stages inside the driver, in small pieces and one after the other; this overlaps
reading pages with sending them. The source has been read when `copy` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

BUFFER_BYTES = 64 << 20


class StagedCopies:
    """host_buffer(shape, dtype): makes pinned memory. new_event: for tests; it makes what tells that a copy is done."""

    def __init__(
        self,
        host_buffer: Callable[[tuple[int, ...], torch.dtype], Tensor],
        *,
        num_bytes: int = BUFFER_BYTES,
        new_event: Callable[[], Any] = torch.cuda.Event,
    ) -> None:
        self._host_buffer = host_buffer
        self._num_bytes = num_bytes
        self._new_event = new_event
        self._buffers: list[tuple[Tensor, Any]] = []  # made at the first use
        self._turn = 0

    def copy(self, target: Tensor, source: Tensor) -> bool:
        """Whether it was done: only between contiguous tensors of one type and shape."""
        same = source.dtype == target.dtype and source.shape == target.shape
        if not (same and source.is_contiguous() and target.is_contiguous()):
            return False
        if not self._buffers:
            self._buffers = [(self._host_buffer((self._num_bytes,), torch.uint8), self._new_event()) for _ in range(2)]
        read, written = source.reshape(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
        for start in range(0, read.shape[0], self._num_bytes):
            self._copy_piece(written[start : start + self._num_bytes], read[start : start + self._num_bytes])
        return True

    def _copy_piece(self, target: Tensor, source: Tensor) -> None:
        self._turn ^= 1
        buffer, event = self._buffers[self._turn]
        event.synchronize()  # the copy that last left this buffer is done
        staged = buffer[: source.shape[0]]
        staged.copy_(source)
        target.copy_(staged, non_blocking=True)
        event.record()
