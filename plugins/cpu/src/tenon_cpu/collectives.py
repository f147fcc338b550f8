"""The collectives socket of the CPU platform: ranks of one host, which share memory.

Sums and broadcasts are native calls over that memory, so that the tape has them; the rest is torch.distributed's, by
which the ranks find each other. A message of up to a slot's size is one exchange: its bytes are written once and read
once by every rank.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from tenon_platforms.collectives import CollectiveFlags, TorchCollectives
from tenon_platforms.errors import CapacityError, DeviceError

from .step_calls import TYPES, kernel

SLOT_BYTES = 1 << 20
LINE, WORD = 64, 8  # bytes
NAME_BYTES = 256
IN_MEMORY = Path("/dev/shm")
SUM, BYTES = -1, -1


class NativeCollectives(TorchCollectives):
    """One rank of this host."""

    flags = CollectiveFlags(graph_safe=True)

    def __init__(self, *, rank: int, size: int, address: str, timeout_s: float = 60.0) -> None:
        super().__init__(rank=rank, size=size, address=address, timeout_s=timeout_s)
        self._patience_ms = int(timeout_s * 1000)
        self._memory = self._shared_memory()
        self._shared = torch.frombuffer(self._memory, dtype=torch.uint8)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if tensor.dtype not in TYPES or not tensor.is_contiguous():
            return super().all_reduce(tensor)
        self._exchange(tensor, tensor.numel(), TYPES[tensor.dtype], SUM)
        return tensor

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        if not tensor.is_contiguous():
            return super().broadcast(tensor, source)
        self._exchange(tensor, tensor.nbytes, BYTES, source)
        return tensor

    def set_timeout(self, seconds: float) -> None:
        super().set_timeout(seconds)
        self._patience_ms = int(seconds * 1000)

    def abort(self) -> None:
        self._shared[:WORD] = 1

    def _exchange(self, tensor: Tensor, count: int, type_number: int, source: int) -> None:
        kernel("exchange")(
            x=tensor,
            shared=self._shared,
            count=count,
            slot_bytes=SLOT_BYTES,
            patience_ms=self._patience_ms,
            rank=self.rank,
            size=self.size,
            type=type_number,
            source=source,
        )

    def _shared_memory(self) -> mmap.mmap:
        """Memory that all ranks see, zeroed; its file is gone when this returns."""
        length = (1 + self.size) * LINE + 2 * self.size * SLOT_BYTES
        name = torch.zeros(NAME_BYTES, dtype=torch.uint8)
        path = ""
        if self.rank == 0:
            path = made_file(length)
            name[: len(path.encode())] = torch.frombuffer(bytearray(path.encode()), dtype=torch.uint8)
        super().broadcast(name)
        path = bytes(name.tolist()).rstrip(b"\0").decode()
        try:
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise DeviceError(
                f"rank {self.rank} cannot open the ranks' memory {path}: {error.strerror}",
                remedy="the ranks of the CPU platform run on one host, as one user",
            ) from error
        try:
            memory = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        self.barrier()
        if self.rank == 0:
            Path(path).unlink()
        return memory


def made_file(length: int) -> str:
    """A file of zeros in memory, where the system has a place for them. Raises `CapacityError` where it is full."""
    folder = IN_MEMORY if IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK) else None
    descriptor, path = tempfile.mkstemp(prefix="tenon-ranks-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, length)  # a full place is told now, not by a signal later
    except OSError as error:
        Path(path).unlink()
        raise CapacityError(
            f"{Path(path).parent} has no room for {length} bytes that the ranks share: {error.strerror}",
            remedy="make room there (of a container: --shm-size)",
        ) from error
    finally:
        os.close(descriptor)
    return path
