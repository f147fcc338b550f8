"""The collectives socket of the CUDA platform: NCCL through torch.distributed, on tensors where they lie.

What NCCL does in one launch (gather into one tensor, scatter a sum, exchange) is not taken apart as the default for
other backends is. All of it may be captured in a graph.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from tenon_platforms.collectives import CollectiveFlags, TorchCollectives

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.device import Device


class NCCLCollectives(TorchCollectives):
    """One rank on one GPU. backend: another one only in tests."""

    flags = CollectiveFlags(graph_safe=True, alignment=16)
    interface_variable = "NCCL_SOCKET_IFNAME"

    def __init__(self, device: Device, *, rank: int, size: int, address: str, backend: str = "nccl") -> None:
        super().__init__(rank=rank, size=size, address=address, backend=backend)
        self._device = device

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        part = tensor.new_empty((tensor.shape[0] // self.size, *tensor.shape[1:]))
        if tensor.numel():
            self._dist.reduce_scatter_tensor(part, tensor.contiguous())
        return part

    def all_gather(self, tensor: Tensor) -> Tensor:
        whole = tensor.new_empty((tensor.shape[0] * self.size, *tensor.shape[1:]))
        if tensor.numel():
            self._dist.all_gather_into_tensor(whole, tensor.contiguous())
        return whole

    def all_to_all(self, tensor: Tensor, send: list[int], receive: list[int]) -> Tensor:
        received = tensor.new_empty((sum(receive), *tensor.shape[1:]))
        self._dist.all_to_all_single(received, tensor.contiguous(), receive, send)
        return received

    def agree(self, text: str) -> bool:
        digest = bytearray(hashlib.sha256(text.encode()).digest())
        mine = self._device.empty((len(digest),), torch.uint8)
        self._device.copy(mine, torch.frombuffer(digest, dtype=torch.uint8))
        gathered = self.all_gather(mine).view(self.size, -1)
        return bool((gathered == gathered[0]).all())
