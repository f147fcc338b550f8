"""The collectives socket: what ranks say to each other. Default: torch.distributed, or nothing for a single rank.

Tensors are reduced in place and returned. SPMD devices do not fill this socket: they return sharding rules.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFlags:
    """graph_safe: may be captured. alignment: bytes a message must be a multiple of. sharding: in-graph (SPMD)."""

    graph_safe: bool = False
    alignment: int = 1
    sharding: bool = False


class Collectives:
    """One rank's view of its group. The base class is a group of one, where every operation is the identity."""

    flags = CollectiveFlags(graph_safe=True)

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over ranks."""
        return tensor

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """Sum over ranks; rank r gets the r-th of `size` equal parts of the first axis."""
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Every rank's tensor, joined along the first axis by rank."""
        return tensor

    def all_to_all(self, tensor: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Rank r gets send[r] rows from here; receive[r] rows come from rank r. Rows are of the first axis."""
        return tensor

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """The source's tensor everywhere."""
        return tensor

    def send(self, tensor: Tensor, target: int) -> None:
        """To one rank; it must call `receive`."""
        raise ValueError(f"rank {target} does not exist in a group of one")

    def receive(self, tensor: Tensor, source: int) -> Tensor:
        """Into `tensor`, from one rank."""
        raise ValueError(f"rank {source} does not exist in a group of one")

    def barrier(self) -> None:
        """Wait for all ranks."""

    def agree(self, text: str) -> bool:
        """Whether every rank passed the same text (plan fingerprints)."""
        return True

    def set_timeout(self, seconds: float) -> None:
        """From now on an operation that waits longer for another rank raises; a group of one never waits."""

    def abort(self) -> None:
        """Another rank has ended: who waits for it raises soon, as does every later operation. From any thread.

        Nothing where a rank that is gone is noticed without a word, as torch.distributed's connections do.
        """

    def close(self) -> None:
        """Leave the group."""


class TorchCollectives(Collectives):
    """torch.distributed with the given backend, over a rendezvous address on the loopback or an explicit host."""

    flags = CollectiveFlags()
    interface_variable = "GLOO_SOCKET_IFNAME"  # by which the backend is told where to listen

    def __init__(self, *, rank: int, size: int, address: str, backend: str = "gloo", timeout_s: float = 60.0) -> None:
        super().__init__(rank, size)
        import torch.distributed as dist

        if address.startswith("file:") and (loopback := _loopback()):  # all on this host: nobody else may reach them
            os.environ.setdefault(self.interface_variable, loopback)

        self._dist: Any = dist
        dist.init_process_group(
            backend, init_method=address, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
        )

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if tensor.numel():
            self._dist.all_reduce(tensor)
        return tensor

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        whole = self.all_reduce(tensor.clone())
        return whole.chunk(self.size)[self.rank].contiguous()

    def all_gather(self, tensor: Tensor) -> Tensor:
        import torch

        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        if tensor.numel():
            self._dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def all_to_all(self, tensor: Tensor, send: list[int], receive: list[int]) -> Tensor:
        received = tensor.new_empty((sum(receive), *tensor.shape[1:]))
        inbox, outbox = received.split(receive), tensor.contiguous().split(send)
        inbox[self.rank].copy_(outbox[self.rank])
        waits = []
        for other in range(self.size):
            if other == self.rank:
                continue
            if send[other]:
                waits.append(self._dist.isend(outbox[other].contiguous(), other))
            if receive[other]:
                waits.append(self._dist.irecv(inbox[other], other))
        for wait in waits:
            wait.wait()
        return received

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        self._dist.broadcast(tensor, source)
        return tensor

    def send(self, tensor: Tensor, target: int) -> None:
        self._dist.send(tensor, target)

    def receive(self, tensor: Tensor, source: int) -> Tensor:
        self._dist.recv(tensor, source)
        return tensor

    def barrier(self) -> None:
        self._dist.barrier()

    def agree(self, text: str) -> bool:
        import hashlib

        import torch

        digest = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
        gathered = self.all_gather(digest).view(self.size, -1)
        return bool((gathered == gathered[0]).all())

    def set_timeout(self, seconds: float) -> None:
        from torch.distributed.distributed_c10d import _set_pg_timeout

        _set_pg_timeout(timedelta(seconds=seconds), self._dist.group.WORLD)

    def close(self) -> None:
        self._dist.destroy_process_group()


def _loopback() -> str | None:
    """The name of this host's loopback interface."""
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    return next((name for name in names if name in ("lo", "lo0")), None)
