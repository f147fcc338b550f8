"""Bugs of memory: what is never given back, and what running out of it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from mutations.installed import Bug
from mutations.installed import register as _register
from mutations.planting import ALL_FEATURES, PLANTED, Registry, honest
from torch import Tensor

from tenon_core.engine.block_allocator import LRUBlockAllocator
from tenon_platforms.adjustments import Adjustment
from tenon_platforms.attention import AttentionKernel
from tenon_platforms.batch import AttentionBatch
from tenon_platforms.device import Device, Fault, MemoryInfo
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.attention_reference import ReferenceAttention
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.table import OpTable

KEPT: list[Any] = []
MIB = 2**20


class LeakyAllocator(LRUBlockAllocator):
    """Every seventh block that is released stays held."""

    _num_released = 0

    def release(self, blocks: Any) -> None:
        given = []
        for block in blocks:
            self._num_released += 1
            if self._num_released % 7:
                given.append(block)
        super().release(given)


class LeaksBlocks(Bug):
    def adjustments(self, requested: Any) -> list[Any]:
        return [
            Adjustment(
                field="block_allocator", requested=requested["block_allocator"], effective="leaky",
                reason="our allocator", severity="performance", who="planted",
            )
        ]  # fmt: skip


class KeepsActivations(Bug):
    """A norm keeps a copy of what it returned, for a debugger that never comes."""

    def register_ops(self, table: OpTable, device: Device) -> None:
        def make(spec: RMSNormSpec) -> Kernel:
            inner = honest(spec, device)

            def run(x: Tensor, weight: Tensor) -> Tensor:
                y: Tensor = inner.run(x, weight)
                KEPT.append(y.clone())
                return y

            return Kernel(name=PLANTED, run=run)

        table.offer(RMSNormSpec, PLANTED, make, features=ALL_FEATURES)


class KeepsPlans(Bug):
    """The attention keeps the plan of every step."""

    def register_ops(self, table: OpTable, device: Device) -> None:
        class Keeping(ReferenceAttention):
            def plan(self, batch: AttentionBatch) -> Any:
                plan = super().plan(batch)
                KEPT.append(plan)
                return plan

        offer_attention(table, device, Keeping)


@dataclass(slots=True, kw_only=True)
class CountingDevice(Device):
    """A device with a budget of its own."""

    budget: int = 512 * MIB
    used: int = 0
    checks: bool = True
    fault: Fault = Fault.OUT_OF_MEMORY

    def memory(self) -> MemoryInfo:
        return MemoryInfo(free=self.budget - self.used, total=self.budget, peak=self.used)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = dtype.itemsize
        for one in shape:
            size *= one
        if self.checks and size > self.budget // 3:
            raise RuntimeError(f"THING_ERROR_ALLOC: {size} bytes")
        return Device.empty(self, shape, dtype)

    def classify_fault(self, error: BaseException) -> Fault:
        return self.fault if "THING_ERROR_ALLOC" in str(error) else Device.classify_fault(self, error)


class MisnamesAllocation(Bug):
    def device(self) -> Device:
        return CountingDevice(fault=Fault.REQUEST)


class GivesTooMuch(Bug):
    def device(self) -> Device:
        return CountingDevice(budget=64 * MIB, checks=False)


def offer_attention(table: OpTable, device: Device, cls: type[ReferenceAttention]) -> None:
    """An attention backend with overridden methods."""

    def make(spec: AttentionSpec) -> Kernel:
        held: Any = cls(spec, device, one_by_one=False)
        return AttentionKernel(name=PLANTED, run=held.run, backend=held)

    table.offer(AttentionSpec, PLANTED, make, features=ALL_FEATURES)


SOAK = "L4/soak/one-group"
BUGS: dict[str, tuple[str, str, type[Bug]]] = {
    "leaked block": ("L4/accounting/one-group-cached", "its allocator loses every seventh block", LeaksBlocks),
    "leaked block in a storm": ("L4/aborts/one-group", "the same, when requests are aborted", LeaksBlocks),
    "activations kept": (SOAK, "a kernel keeps what it returned", KeepsActivations),
    "plans kept": (SOAK, "attention keeps every step's plan", KeepsPlans),
    "allocation is a request's fault": (
        "L4/exhausted",
        "its own error is classified request-fatal",
        MisnamesAllocation,
    ),
    "more memory than there is": ("L4/exhausted", "allocations beyond the total succeed", GivesTooMuch),
}


def register(registry: Registry) -> None:
    """All of them."""
    _register(registry, BUGS)
