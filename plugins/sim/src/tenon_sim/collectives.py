"""The collectives socket of the simulated device: torch.distributed between hosts, tensors staged on the way.

Torch's backends know nothing of an out-of-tree device: what is said goes through host buffers. Reading waits for all
queued work, writing is queued; a sender's buffer is its own, so nothing is overwritten under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenon_platforms.collectives import CollectiveFlags, Collectives, TorchCollectives

if TYPE_CHECKING:
    from torch import Tensor

    from .device import SimDevice


class SimCollectives(Collectives):
    """One rank on one device."""

    flags = CollectiveFlags()

    def __init__(self, device: SimDevice, *, rank: int, size: int, address: str) -> None:
        super().__init__(rank, size)
        self._device = device
        self._hosts = TorchCollectives(rank=rank, size=size, address=address)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return self._write(tensor, self._hosts.all_reduce(self._read(tensor)))

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        return self._made(self._hosts.reduce_scatter(self._read(tensor)))

    def all_gather(self, tensor: Tensor) -> Tensor:
        return self._made(self._hosts.all_gather(self._read(tensor)))

    def all_to_all(self, tensor: Tensor, send: list[int], receive: list[int]) -> Tensor:
        return self._made(self._hosts.all_to_all(self._read(tensor), send, receive))

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        return self._write(tensor, self._hosts.broadcast(self._read(tensor), source))

    def send(self, tensor: Tensor, target: int) -> None:
        self._hosts.send(self._read(tensor), target)

    def receive(self, tensor: Tensor, source: int) -> Tensor:
        return self._write(tensor, self._hosts.receive(self._read(tensor), source))

    def barrier(self) -> None:
        self._device.synchronize()
        self._hosts.barrier()

    def agree(self, text: str) -> bool:
        return self._hosts.agree(text)

    def set_timeout(self, seconds: float) -> None:
        self._hosts.set_timeout(seconds)

    def close(self) -> None:
        self._hosts.close()

    def _read(self, tensor: Tensor) -> Tensor:
        """What the device holds once all queued work is done, in a new host buffer."""
        buffer = self._device.host_buffer(tuple(tensor.shape), tensor.dtype)
        self._device.copy(buffer, tensor)
        self._device.synchronize()
        return buffer

    def _write(self, tensor: Tensor, value: Tensor) -> Tensor:
        """Queue a host's values into a tensor of the device."""
        buffer = self._device.host_buffer(tuple(value.shape), value.dtype)
        buffer.copy_(value)
        self._device.copy(tensor, buffer)
        return tensor

    def _made(self, value: Tensor) -> Tensor:
        return self._write(self._device.empty(tuple(value.shape), value.dtype), value)
