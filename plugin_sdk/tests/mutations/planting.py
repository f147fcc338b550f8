"""Planting: a correct platform with one bug, as small as a vendor's would be.

A mutation wraps a kernel, or a method of the attention backend, of the reference platform. It names the level and the
check that should find it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tenon_platforms.attention import AttentionKernel
from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_platforms.device import Device
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.attention_reference import ReferenceAttention
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable
from tenon_plugin_sdk.conformance.subject import Subject

ALL_FEATURES = {
    "rms_norm.weight_offset",
    "rope.interleaved",
    "rope.axis_sections",
    "embedding.scale",
    "attention.sliding_window",
    "attention.soft_cap",
    "attention.sinks",
    "attention.bidirectional",
}
Plant = Callable[["Mutant", OpTable, Device], None]
PLANTED = "planted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One bug. check: `L2/attention/float32-gqa`, a prefix of the addresses that should find it."""

    name: str
    check: str
    what: str
    plant: Callable[[], Any]

    @property
    def level(self) -> str:
        """The level that should find it."""
        return self.check.partition("/")[0]

    def subject(self) -> Subject:
        """The platform with the bug, under test."""
        planted = self.plant()
        return planted if isinstance(planted, Subject) else Subject.of(planted)


@dataclass(slots=True)
class Registry:
    """All mutations, by name."""

    held: dict[str, Mutation] = field(default_factory=dict)

    def add(self, name: str, check: str, what: str, plant: Callable[[], Any]) -> None:
        """One more; a name comes once."""
        assert name not in self.held, name
        self.held[name] = Mutation(name=name, check=check, what=what, plant=plant)


class Mutant(ReferencePlatform):
    """The reference with planted offers."""

    def __init__(self, *plants: Plant) -> None:
        super().__init__()
        self.plants = plants

    def register_ops(self, table: OpTable, device: Device) -> None:
        for plant in self.plants:
            plant(self, table, device)


def honest(spec: Spec, device: Device, *context: Any) -> Kernel:
    """The reference kernel of a spec, without any bug."""
    clean = OpTable(platform="reference")
    return clean.choose(spec, *((device,) if isinstance(spec, AttentionSpec) else context))


Change = Callable[[Callable[..., Any], Any], Callable[..., Any]]


def wrap_run(spec_type: type[Spec], change: Change, **flags: Any) -> Callable[[], Mutant]:
    """change(run, spec) -> another run. flags: of `KernelFlags` that the bug's author states."""

    def plant(mutant: Mutant, table: OpTable, device: Device) -> None:
        def make(spec: Any) -> Kernel:
            kernel = honest(spec, device)
            flagged = dataclasses.replace(kernel.flags, **{"batch_invariant": False, **flags})
            return Kernel(
                name=PLANTED, run=change(kernel.run, spec), prepare=kernel.prepare, native=kernel.native, flags=flagged
            )

        table.offer(spec_type, PLANTED, make, features=ALL_FEATURES)

    return lambda: Mutant(plant)


def wrap_spec(spec_type: type[Spec], change: Callable[[Any], Any]) -> Callable[[], Mutant]:
    """The correct kernel of another spec."""

    def plant(mutant: Mutant, table: OpTable, device: Device) -> None:
        def make(spec: Any) -> Kernel:
            kernel = honest(change(spec), device)
            return dataclasses.replace(kernel, name=PLANTED)

        table.offer(spec_type, PLANTED, make, features=ALL_FEATURES)

    return lambda: Mutant(plant)


def backend(cls: type[ReferenceAttention]) -> Callable[[], Mutant]:
    """An attention backend with overridden methods."""

    def plant(mutant: Mutant, table: OpTable, device: Device) -> None:
        def make(spec: AttentionSpec) -> Kernel:
            held: Any = cls(spec, device, one_by_one=False)
            return AttentionKernel(name=PLANTED, run=held.run, backend=held)

        table.offer(AttentionSpec, PLANTED, make, features=ALL_FEATURES)

    return lambda: Mutant(plant)
