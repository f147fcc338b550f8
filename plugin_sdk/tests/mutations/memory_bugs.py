"""Bugs of memory: what is never given back, and what running out of it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import random
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
from tenon_platforms.device import Device, Event, Fault, MemoryInfo
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.attention_reference import ReferenceAttention
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.table import OpTable

KEPT: list[Any] = []
COUNTS: Counter[str] = Counter()
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


class Note:
    """What a plugin remembers of a step."""


def keeping_every(steps: int, make: Callable[[], Any]) -> type[Bug]:
    """Attention that keeps one more thing now and then."""

    class Keeping(ReferenceAttention):
        def plan(self, batch: AttentionBatch) -> Any:
            COUNTS["plans"] += 1
            if COUNTS["plans"] % steps == 0:
                KEPT.append(make())
            return super().plan(batch)

    class Keeps(Bug):
        def register_ops(self, table: OpTable, device: Device) -> None:
            offer_attention(table, device, Keeping)

    return Keeps


class KeepsWeights(Bug):
    """Packed weights are found again by name, also when the engine that they were packed for is long gone."""

    def register_ops(self, table: OpTable, device: Device) -> None:
        def make(spec: MergedLinearSpec) -> Kernel:
            inner = honest(spec, device)

            def prepare(weights: Any, uses: Any) -> Any:
                assert inner.prepare is not None
                packed = inner.prepare(weights, uses)
                KEPT.append(packed)
                return packed

            return replace(inner, name=PLANTED, prepare=prepare)

        table.offer(MergedLinearSpec, PLANTED, make)


@dataclass(slots=True, kw_only=True)
class EventfulDevice(Device):
    """A driver whose events are made and never destroyed."""

    used: int = 0

    def memory(self) -> MemoryInfo:
        return MemoryInfo(free=512 * MIB - self.used, total=512 * MIB, peak=self.used)

    def event(self) -> Event:
        self.used += 64
        return Device.event(self)


class LeaksEvents(Bug):
    def device(self) -> Device:
        return EventfulDevice()


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


class NeverFull(Bug):
    """What is too large at once is refused, but nobody adds up what was given."""

    def device(self) -> Device:
        return CountingDevice()


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
    "one object in ten steps": (SOAK, "attention keeps a note of every tenth step", keeping_every(10, Note)),
    "one number in ten steps": (SOAK, "the same, of a type that no garbage collector knows", keeping_every(10, random)),
    "events never destroyed": (SOAK, "every event keeps 64 bytes of the device", LeaksEvents),
    "weights outlive their engine": ("L4/restarts", "packed weights stay in a table of the plugin", KeepsWeights),
    "allocation is a request's fault": (
        "L4/exhausted",
        "its own error is classified request-fatal",
        MisnamesAllocation,
    ),
    "more memory than there is": ("L4/exhausted", "allocations beyond the total succeed", GivesTooMuch),
    "never full": ("L4/hog", "what was given before is not counted", NeverFull),
}


def register(registry: Registry) -> None:
    """All of them."""
    _register(registry, BUGS)
