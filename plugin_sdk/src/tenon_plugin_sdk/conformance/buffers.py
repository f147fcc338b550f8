"""Guarded inputs: every tensor a kernel is given lies between guard zones, and may lie in odd places.

    contiguous   guard | rows | guard
    strided      guard | row pad row pad ... | guard      rows further apart than they are long
    shifted      as contiguous, one element off alignment

Guards hold NaN, or for integers an index that exists nowhere: what reads them shows. After a run nothing but what the
kernel may write has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .registry import ConformanceError
from .subject import Subject

GUARD = 64  # elements on either side
LAYOUTS = ("contiguous", "strided", "shifted")
POISON_INDEX = 0x3FFFFFFF


def poison(dtype: torch.dtype) -> float | int:
    """What a guard holds."""
    if dtype.is_floating_point:
        return float("nan")
    return 0xA5 if dtype == torch.uint8 else 1 if dtype == torch.bool else POISON_INDEX


@dataclass(slots=True)
class GuardedBuffer:
    """One tensor between guards. before: the whole storage as the kernel got it, on the host."""

    name: str
    whole: Tensor
    view: Tensor
    before: Tensor
    inside: Tensor  # bool, which elements of the storage are the tensor's

    def check(self, subject: Subject, *, may_change: bool) -> None:
        """Raise where the kernel wrote where it may not."""
        after = subject.to_host(self.whole)
        changed = _bits(after) != _bits(self.before)
        if may_change:
            changed &= ~self.inside
        if bool(changed.any()):
            place = int(changed.nonzero()[0])
            zone = "an input that it may not write" if bool(self.inside[place]) else "outside the buffer"
            raise ConformanceError(
                f"{self.name}: the kernel wrote {zone}: {int(changed.sum())} elements, first at element {place - GUARD}"
                f" (0 is the buffer's first)"
            )


@dataclass(slots=True)
class Buffers:
    """The guarded inputs of one call."""

    subject: Subject
    held: list[GuardedBuffer] = field(default_factory=list)

    def put(self, name: str, value: Tensor, layout: str = "contiguous") -> Tensor:
        """A guarded copy of a host tensor on the device; layout as in the module's docstring."""
        shape, strides = tuple(value.shape), list(value.contiguous().stride())
        shift = 1 if layout == "shifted" else 0
        if layout == "strided" and value.dim() > 1 and value.numel():
            strides[0] += 8
        extent = (
            1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if value.numel() else 0
        )
        size = extent + 2 * GUARD + shift
        host = torch.full((size,), poison(value.dtype)).to(value.dtype)
        inside = torch.zeros(size, dtype=torch.bool)
        if value.numel():
            host.as_strided(shape, strides, GUARD + shift).copy_(value)
            inside.as_strided(shape, strides, GUARD + shift).fill_(True)
        whole = self.subject.to_device(host)
        view = whole.as_strided(shape, strides, GUARD + shift)
        self.held.append(GuardedBuffer(name, whole, view, host, inside))
        return view

    def check(self, *, may_change: tuple[str, ...] = ()) -> None:
        """Raise where anything was written that may not be."""
        for buffer in self.held:
            buffer.check(self.subject, may_change=buffer.name in may_change)


def _bits(value: Tensor) -> Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return value.view(kinds[value.element_size()])
