"""Bugs of execution, devices and claims, on the simulated device where a queue or a capture is needed."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from mutations.planting import Mutant, Registry
from torch import Tensor

from tenon_platforms.attention import attention_kernel
from tenon_platforms.batch import AttentionBatch
from tenon_platforms.device import Device, Event, Fault, MemoryInfo
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import EngineLimits, Executable, ExecutableKind, Execution
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.pools import Pool
from tenon_platforms.shapes import LatticeShapes, ScheduleLimits, ShapeKey, ShapePolicy
from tenon_sim.attention import SimAttention, SimPlan
from tenon_sim.execution import SimExecutable, SimExecution
from tenon_sim.platform import SimPlatform

REPLAY = "L3/replay/decode-2x2-0-2-greedy"
PREFILL = "L3/replay/prefill-24x1-2-1-sampled"  # of the compiling character


class StaleLengths(SimAttention):
    """The lengths of the capture, at every replay."""

    def plan(self, batch: AttentionBatch) -> SimPlan:
        return dataclasses.replace(super().plan(batch), seq_lens=batch.seq_lens.clone())

    def update(self, plan: Any, batch: AttentionBatch) -> Any:
        return plan


class StaleTable(SimAttention):
    """The block table of the capture, at every replay."""

    def plan(self, batch: AttentionBatch) -> SimPlan:
        return dataclasses.replace(super().plan(batch), block_table=batch.block_table.clone())

    def update(self, plan: Any, batch: AttentionBatch) -> Any:
        return plan


class StalePositions(SimAttention):
    def plan(self, batch: AttentionBatch) -> SimPlan:
        return dataclasses.replace(super().plan(batch), positions=batch.positions.clone())

    def update(self, plan: Any, batch: AttentionBatch) -> Any:
        return plan


class PaddingWrites(SimAttention):
    """Padding's keys and values go to the first live block instead of the null block."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        super().write_kv(key, value, cache, torch.where(slots < cache.shape[3], slots + cache.shape[3], slots))


def with_attention(cls: type[SimAttention]) -> Any:
    """The capturing simulated device with another attention."""

    class Planted(SimPlatform):
        def register_ops(self, table: OpTable, device: Any) -> None:
            def make(spec: AttentionSpec) -> Kernel:
                return attention_kernel("planted", cls(spec, device))

            known = {"attention.sliding_window", "attention.soft_cap", "attention.sinks", "attention.bidirectional"}
            table.offer(AttentionSpec, "planted", make, features=known, priority=1)
            super().register_ops(table, device)

    return lambda: Planted({"character": "dynamic"})


class CompilesEachTime(SimExecutable):
    def run(self, key: ShapeKey, inputs: Any) -> Any:
        self.num_compiles += 1
        return super().run(key, inputs)


class RepeatsTheFirst(SimExecutable):
    """Replay returns what the capture computed."""

    def run(self, key: ShapeKey, inputs: Any) -> Any:
        prepared = self._prepared.get(key)
        return super().run(key, inputs) if prepared is None else prepared.outputs


class SwallowsErrors(SimExecutable):
    def run(self, key: ShapeKey, inputs: Any) -> Any:
        try:
            outputs = super().run(key, inputs)
            self._device.synchronize()
        except Exception:  # noqa: BLE001 - the bug
            return None
        return outputs


class IgnoresValidCount(SimExecutable):
    """Every token of the key counts, padding too."""

    def __init__(self, device: Any, fn: Any, *, name: str, kind: ExecutableKind) -> None:
        def every(call: Any) -> Any:
            full = torch.full_like(call.inputs.num_valid, call.inputs.key.tokens)
            return fn(dataclasses.replace(call, inputs=dataclasses.replace(call.inputs, num_valid=full)))

        super().__init__(device, every, name=name, kind=kind)


def with_executable(cls: type[SimExecutable], character: str = "dynamic") -> Any:
    """The capturing simulated device, or the compiling one, with another executable."""

    class Other(SimExecution):
        def executable(self, fn: Any, *, name: str) -> Executable:
            return cls(self.device, fn, name=name, kind=self._kind)

    class Planted(SimPlatform):
        def execution(self, device: Any) -> Execution:
            return Other(device, ExecutableKind.CAPTURE if character == "dynamic" else ExecutableKind.TRACE)

    return lambda: Planted({"character": character})


class SmallLattice(Execution):
    """Five rows are rounded to the four that were compiled."""

    def shape_policy(self, model: Any, limits: EngineLimits, capabilities: Any) -> ShapePolicy:
        class Rounding(LatticeShapes):
            def key(self, need: ShapeKey) -> ShapeKey:
                key = LatticeShapes.key(self, need)
                return dataclasses.replace(key, rows=2, tokens=2, logits=2) if need.rows == 3 else key

        return Rounding(limits=ScheduleLimits(max_tokens=64, max_rows=4), decode_rows=(1, 2, 4))


class PlantedDevice(Mutant):
    """The reference on another device."""

    def __init__(self, device: type[Device]) -> None:
        super().__init__()
        self._device_type = device

    def device(self, index: int = 0) -> Device:
        return self._device_type()


class Fp16Copies(Device):
    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source.half() if source.dtype == torch.float32 else source)


class WholeRowCopies(Device):
    """A copy into part of a tensor writes the whole rows."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        if target.dim() == 2 and not target.is_contiguous():
            target.as_strided((target.shape[0], target.shape[1] + 1), target.stride())[:, -1] = 1
        target.copy_(source)


class LateCopies(Device):
    """Copies are done at the next copy; events do not wait for them."""

    pending: Any = None

    def copy(self, target: Tensor, source: Tensor) -> None:
        if LateCopies.pending is not None:
            LateCopies.pending()
        LateCopies.pending = lambda: target.copy_(source)

    def event(self) -> Event:
        return Event()

    def synchronize(self) -> None:
        if LateCopies.pending is not None:
            LateCopies.pending()
            LateCopies.pending = None


class ForgetsMemoryErrors(Device):
    def classify_fault(self, error: BaseException) -> Fault:
        return Fault.REQUEST


class ImpossibleMemory(Device):
    def memory(self) -> MemoryInfo:
        return MemoryInfo(free=2**40, total=2**30, peak=0)


class DirtyZeros(Device):
    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.ones(shape, dtype=dtype)


class LosesWeights(Device):
    """What `zeros` and `empty` made for weights is cleared by sleep, and nobody kept it."""

    weights: Any = None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made = torch.empty(shape, dtype=dtype)
        if self._pool is Pool.WEIGHTS:
            LosesWeights.weights = made
        return made

    def sleep(self, pools: tuple[Pool, ...]) -> int:
        if Pool.WEIGHTS in pools and LosesWeights.weights is not None:
            LosesWeights.weights.zero_()
            LosesWeights.weights = None
            return 1
        return 0


class KeepsTheCache(Device):
    """Says that it gave the cache back, and has it as it was."""

    is_asleep = False

    def sleep(self, pools: tuple[Pool, ...]) -> int:
        before, KeepsTheCache.is_asleep = KeepsTheCache.is_asleep, True
        return 0 if before else 1

    def wake(self, pools: tuple[Pool, ...]) -> None:
        KeepsTheCache.is_asleep = False


def offering(spec_type: Any, make: Any, features: frozenset[str] = frozenset()) -> Any:
    """The reference with one more offer."""

    def plant(mutant: Any, table: OpTable, device: Device) -> None:
        table.offer(spec_type, "planted", make, features=features)

    return lambda: Mutant(plant)


def raises(spec: Any) -> Kernel | No:
    if spec.dtype is not DType.FLOAT32:
        raise KeyError(spec.dtype)
    return No("not here")


def register(to: Registry) -> None:
    """All of them."""
    for name, check, what, plant in (
        ("stale-lengths", REPLAY, "lengths of the capture at every replay", with_attention(StaleLengths)),
        ("stale-table", REPLAY, "block table of the capture", with_attention(StaleTable)),
        ("stale-positions", REPLAY, "positions of the capture", with_attention(StalePositions)),
        ("padding-writes", "L3/padding", "padding written into a live block", with_attention(PaddingWrites)),
        ("late-compile", REPLAY, "compiles at every step", with_executable(CompilesEachTime)),
        ("replay-returns-capture", REPLAY, "the capture's outputs", with_executable(RepeatsTheFirst)),
        (
            "valid-count-ignored",
            PREFILL,
            "padding counts as tokens",
            with_executable(IgnoresValidCount, character="static"),
        ),
        ("errors-swallowed", "L1/errors", "a failed step looks like a good one", with_executable(SwallowsErrors)),
        ("copies-in-half", "L1/copies/float32", "copies through float16", lambda: PlantedDevice(Fp16Copies)),
        ("copies-too-wide", "L1/copies/float32", "columns beside the copy", lambda: PlantedDevice(WholeRowCopies)),
        ("event-too-early", "L1/order", "events do not wait for copies", lambda: PlantedDevice(LateCopies)),
        (
            "memory-fault",
            "L1/faults",
            "out of memory taken for a bad request",
            lambda: PlantedDevice(ForgetsMemoryErrors),
        ),
        ("memory-info", "L1/facts", "more free than there is", lambda: PlantedDevice(ImpossibleMemory)),
        ("dirty-zeros", "L1/tensors/float32", "zeros that are not", lambda: PlantedDevice(DirtyZeros)),
        ("weights-lost", "L1/sleep", "sleep keeps no weights", lambda: PlantedDevice(LosesWeights)),
        ("cache-kept", "L1/sleep", "a cache that wakes up as it was", lambda: PlantedDevice(KeepsTheCache)),
        ("offer-raises", "L2/refusals", "an offer that raises", offering(RMSNormSpec, raises)),
        (
            "no-without-reason",
            "L2/refusals",
            "a refusal without a reason",
            offering(MergedLinearSpec, lambda spec: No("")),
        ),
        (
            "unknown-feature",
            "L2/features",
            "a feature that no spec has",
            offering(RMSNormSpec, lambda spec: No("never"), frozenset({"rms_norm.weight-offset"})),
        ),
        ("small-lattice", "L3/lattice", "a key smaller than the step", lattice_of(SmallLattice)),
    ):
        to.add(name, check, what, plant)


def lattice_of(execution: type[Execution]) -> Any:
    """The reference with another execution socket."""

    class Planted(Mutant):
        def execution(self, device: Device) -> Execution:
            return execution(device)

    return Planted
