"""Bugs that whole engines show: state that outlives its request, chunks, forks, claims."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from mutations.installed import Bug
from mutations.installed import register as _register
from mutations.kv_type_bugs import CutsOff
from mutations.memory_bugs import offer_attention
from mutations.planting import ALL_FEATURES, PLANTED, Registry, honest
from torch import Tensor

from tenon_platforms.adjustments import Adjustment
from tenon_platforms.batch import AttentionBatch, RowColumn, SamplingBatch
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.kernel import Kernel, KernelFlags
from tenon_platforms.ops.attention_reference import ReferenceAttention
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.ops.table import OpTable


class StaleRows(ReferenceAttention):
    """A row's table is gathered once for every number of blocks, and not again for the row's next request."""

    def plan(self, batch: AttentionBatch) -> Any:
        known = self.__dict__.setdefault("known", {})
        table = batch.block_table.clone()
        lengths = batch.host.seq_lens.tolist()
        for row, length in zip(batch.rows.tolist(), lengths, strict=False):
            blocks = -(-length // batch.block_size)
            table[row] = known.setdefault((row, blocks), table[row].clone())
        return super().plan(dataclasses.replace(batch, block_table=table))


class ForgetsEarlierChunks(ReferenceAttention):
    """A prefill attends to its own tokens only."""

    def plan(self, batch: AttentionBatch) -> Any:
        plan = super().plan(batch)
        rows = [self._cut(row) if len(row.positions) > 1 else row for row in plan.rows]
        return dataclasses.replace(plan, rows=rows)

    def _cut(self, row: Any) -> Any:
        skipped = len(row.context) - len(row.positions)
        return dataclasses.replace(row, context=row.context[skipped:], context_start=row.context_start + skipped)


class ForgetsToCopy(ReferenceAttention):
    """Rows that part go on in one block."""

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        pass


def with_attention(cls: type[ReferenceAttention]) -> type[Bug]:
    """The correct platform with this attention."""

    class Planted(Bug):
        def register_ops(self, table: OpTable, device: Device) -> None:
            offer_attention(table, device, cls)

    return Planted


def with_norm(change: Any) -> type[Bug]:
    """The correct platform with a norm of change(y, x), said to be deterministic and batch-invariant."""

    class Planted(Bug):
        def register_ops(self, table: OpTable, device: Device) -> None:
            def make(spec: RMSNormSpec) -> Kernel:
                inner = honest(spec, device)
                flags = KernelFlags(batch_invariant=True, deterministic=True)
                return Kernel(name=PLANTED, run=lambda x, w: change(inner.run(x, w)), flags=flags)

            table.offer(RMSNormSpec, PLANTED, make, features=ALL_FEATURES)

    return Planted


def _batch_dependent(y: Tensor) -> Tensor:
    return y * (1 + 0.02 * (len(y) % 3))


class NoiseOfTorch(Bug):
    """Samples with torch's generator, which every engine seeds alike."""

    def register_ops(self, table: OpTable, device: Device) -> None:
        def make(spec: SamplerSpec) -> Kernel:
            inner = honest(spec, device)

            def run(logits: Tensor, batch: SamplingBatch) -> Tensor:
                if not batch.mode.noise:
                    return inner.run(logits, batch)
                temperature = batch.params[:, RowColumn.TEMPERATURE].contiguous().view(torch.float32)[:, None]
                shares = (logits.float() / temperature.clamp_min(1e-3)).softmax(-1)
                return shares.multinomial(1)[:, 0].int()

            return Kernel(name=PLANTED, run=run)

        table.offer(SamplerSpec, PLANTED, make)


class ClaimsHalf(Bug):
    """Claims float16; its products are float32's, and stop where they are given another type."""

    def capabilities(self, honest: Capabilities) -> Capabilities:
        return dataclasses.replace(honest, dtypes=(DType.FLOAT32, DType.FLOAT16))

    def register_ops(self, table: OpTable, device: Device) -> None:
        def make(spec: MergedLinearSpec) -> Kernel:
            inner = honest(spec, device)

            def run(x: Tensor, weights: Any) -> Tensor:
                if x.dtype is not torch.float32:
                    raise RuntimeError("THING_ERROR_UNSUPPORTED: gemm_f16")
                y: Tensor = inner.run(x, weights)
                return y

            return dataclasses.replace(inner, name=PLANTED, run=run)

        table.offer(MergedLinearSpec, PLANTED, make)


class ClaimsPenalties(Bug):
    """Refuses nothing; its sampler stops at a batch with penalties."""

    def register_ops(self, table: OpTable, device: Device) -> None:
        def make(spec: SamplerSpec) -> Kernel:
            inner = honest(spec, device)

            def run(logits: Tensor, batch: SamplingBatch) -> Tensor:
                if batch.mode.penalties:
                    raise RuntimeError("THING_ERROR_UNSUPPORTED: penalties")
                y: Tensor = inner.run(logits, batch)
                return y

            return Kernel(name=PLANTED, run=run)

        table.offer(SamplerSpec, PLANTED, make)


class RefusesWith(Bug):
    """Claims float32 only, and refuses any other type in its own way."""

    error: Exception = RuntimeError("THING_ERROR_UNSUPPORTED: dtype")

    def capabilities(self, honest: Capabilities) -> Capabilities:
        return dataclasses.replace(honest, dtypes=(DType.FLOAT32,))

    def adjustments(self, requested: Any) -> list[Any]:
        if requested["dtype"] != "float32":
            raise self.error
        return []


class RefusesWithoutRemedy(RefusesWith):
    error = ConfigError("the thing does not do that")


class UpgradesInSilence(Bug):
    """Claims float32 only, and computes in it whatever is asked for."""

    def capabilities(self, honest: Capabilities) -> Capabilities:
        return dataclasses.replace(honest, dtypes=(DType.FLOAT32,))

    def adjustments(self, requested: Any) -> list[Any]:
        return [
            Adjustment(
                field="dtype", requested=requested["dtype"], effective="float32", reason="we compute in float32",
                severity="performance", who="planted",
            )
        ]  # fmt: skip


UNCLAIMED = "L6/unclaimed/dtype-bfloat16"
BUGS: dict[str, tuple[str, str, type[Bug]]] = {
    "stale row": ("L6/requests/gemma3", "a row's table outlives its request", with_attention(StaleRows)),
    "stale row after preemption": ("L6/preemption", "the same, when a request comes back", with_attention(StaleRows)),
    "earlier chunks forgotten": (
        "L6/flags/llama-chunks-of-16", "a chunk attends to itself only", with_attention(ForgetsEarlierChunks),
    ),
    "depends on the batch": (
        "L6/batch_invariant/gemma3", "a norm's result hangs on the number of tokens", with_norm(_batch_dependent),
    ),
    "forks not copied": (
        "L6/requests/gemma3", "copy_blocks does nothing", with_attention(ForgetsToCopy),
    ),
    "cut off in one byte": (
        "L6/kv_types/float8_e4m3", "keys and values rounded towards zero", with_attention(CutsOff),
    ),
    "noise of torch": ("L6/repeats", "samples with torch's generator, not the contract's", NoiseOfTorch),
    "type over-claimed": ("L6/types/float16", "float16 is claimed, and products of it raise", ClaimsHalf),
    "feature over-claimed": ("L6/admission", "penalties are admitted, and the sampler raises", ClaimsPenalties),
    "refuses with an error of its own": (UNCLAIMED, "a type is refused by RuntimeError", RefusesWith),
    "refuses without a remedy": (UNCLAIMED, "a type is refused, and nothing is advised", RefusesWithoutRemedy),
    "type changed in silence": (UNCLAIMED, "bfloat16 becomes float32", UpgradesInSilence),
}  # fmt: skip


def register(registry: Registry) -> None:
    """All of them."""
    _register(registry, BUGS)
