"""Swapping ops to the reference: an op table that lets a platform's offers answer `No` for what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import MakeKernel, OpTable

SWAPPED = "swapped to the reference, to find a fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What runs on the reference: whole ops by id, single specs by fingerprint. Nothing: as the platform wants it."""

    ops: frozenset[str] = frozenset()
    specs: frozenset[str] = frozenset()

    def covers(self, spec: Spec) -> bool:
        """Whether this spec is swapped."""
        return spec.op in self.ops or spec.fingerprint() in self.specs


@dataclass(slots=True, kw_only=True)
class SwappingTable(OpTable):
    """An op table with a swap."""

    swap: Swap

    def offer(self, spec_type: type[Spec], name: str, make: MakeKernel, **options: Any) -> None:
        OpTable.offer(self, spec_type, name, _unless(self.swap.covers, make), **options)


def _unless(covers: Callable[[Spec], bool], make: MakeKernel) -> MakeKernel:
    def asked(spec: Spec) -> Kernel | No:
        return No(SWAPPED) if covers(spec) else make(spec)

    return asked
