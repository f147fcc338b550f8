"""Bugs of collectives: wrong sums, wrong places, a shared buffer, and waiting for ever."""

from __future__ import annotations

import torch
from mutations.installed import Bug
from mutations.installed import register as _register
from mutations.planting import Registry
from torch import Tensor

from tenon_platforms.collectives import Collectives, TorchCollectives


class AveragesTwice(TorchCollectives):
    def all_reduce(self, tensor: Tensor) -> Tensor:
        whole = super().all_reduce(tensor)
        return whole.div_(self.size) if whole.is_floating_point() else whole


class SumsInHalf(TorchCollectives):
    """To save bandwidth."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32:
            return super().all_reduce(tensor)
        return tensor.copy_(super().all_reduce(tensor.bfloat16()))


class LeavesTheInput(TorchCollectives):
    def all_reduce(self, tensor: Tensor) -> Tensor:
        return super().all_reduce(tensor.clone())


class ScattersToTheNext(TorchCollectives):
    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        whole = self.all_reduce(tensor.clone())
        return whole.chunk(self.size)[(self.rank + 1) % self.size].contiguous()


class GathersBackwards(TorchCollectives):
    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(super().all_gather(tensor).chunk(self.size)[::-1])


class BroadcastsRankZero(TorchCollectives):
    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        return super().broadcast(tensor, 0)


class ReusesItsBuffer(TorchCollectives):
    """Results lie in one buffer until the next operation: a race that a wait after every one hides."""

    _buffer: Tensor | None = None

    def all_reduce(self, tensor: Tensor) -> Tensor:
        summed = super().all_reduce(tensor)
        if self._buffer is None or self._buffer.dtype != tensor.dtype:
            self._buffer = tensor.new_empty(2**16)
        if summed.numel() > self._buffer.numel():
            return summed
        held = self._buffer[: summed.numel()].view(summed.shape)
        return held.copy_(summed)


class CrashesOnNothing(TorchCollectives):
    def all_gather(self, tensor: Tensor) -> Tensor:
        if not tensor.numel():
            raise RuntimeError("invalid argument: count is 0")
        return super().all_gather(tensor)


class PassesTheBarrier(TorchCollectives):
    def barrier(self) -> None:
        pass


class AlwaysAgrees(TorchCollectives):
    def agree(self, text: str) -> bool:
        return True


class WaitsForEver(TorchCollectives):
    """The time-out is taken and not passed on."""

    def set_timeout(self, seconds: float) -> None:
        pass


def bug(cls: type[TorchCollectives]) -> type[Bug]:
    """The correct platform with these collectives."""

    class Planted(Bug):
        def collectives(self, rank: int, size: int, address: str) -> Collectives:
            return Collectives() if size == 1 else cls(rank=rank, size=size, address=address)

    return Planted


REDUCES, MOVES = "L5/reduces/2-float32", "L5/moves/2-float32"
BUGS: dict[str, tuple[str, str, type[Bug]]] = {
    "mean instead of sum": (REDUCES, "all_reduce averages", bug(AveragesTwice)),
    "sum in half": (REDUCES, "float32 is summed in bfloat16", bug(SumsInHalf)),
    "reduced beside": (REDUCES, "all_reduce returns the sum and leaves its input", bug(LeavesTheInput)),
    "scattered to the next rank": (REDUCES, "rank r gets part r + 1", bug(ScattersToTheNext)),
    "gathered backwards": (MOVES, "parts are joined from the last rank on", bug(GathersBackwards)),
    "broadcast from rank 0": (MOVES, "the source is ignored", bug(BroadcastsRankZero)),
    "nothing crashes": (MOVES, "all_gather of no rows raises", bug(CrashesOnNothing)),
    "collective race": ("L5/order/2-ranks", "results share a buffer with the next operation's", bug(ReusesItsBuffer)),
    "no barrier": ("L5/barrier/2-ranks", "a barrier waits for nobody", bug(PassesTheBarrier)),
    "waits for ever": ("L5/hang/2-ranks", "an operation that waits for a missing rank does not end", bug(WaitsForEver)),
    "always agrees": ("L5/agree/2-ranks", "plans are not compared", bug(AlwaysAgrees)),
}


def register(registry: Registry) -> None:
    """All of them."""
    _register(registry, BUGS)
