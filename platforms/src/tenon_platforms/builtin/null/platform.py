"""The null platform: capture kind, and a step is one empty launch. What remains of a step's time is the host's.

Used by `tenon bench host` and by tests of engine logic. Tokens come out as zeros; memory is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...attention import AttentionBackend, GraphSupport, attention_kernel
from ...batch import AttentionBatch, GQAInputs, Logprobs, StepOutputs
from ...capabilities import Capabilities, Determinism
from ...device import Device
from ...execution import EngineLimits, Executable, ExecutableKind, Execution
from ...kernel import Kernel, KernelFlags
from ...kv_layout import KVLayout, LayoutKind
from ...model import ModelSpec
from ...ops.attention import AttentionSpec
from ...ops.rows import RowWritesSpec
from ...ops.table import OpTable
from ...platform import Platform
from ...shapes import LatticeShapes, ScheduleLimits, ShapeKey, ShapePolicy


class NullAttention(AttentionBackend):
    """A cache of no bytes and an attention that returns its query."""

    graph_support = GraphSupport.ALWAYS

    def __init__(self, spec: AttentionSpec) -> None:
        self.layout = KVLayout(
            kind=LayoutKind.PAGED,
            id="null",
            dims=(),
            dtype=spec.kv_dtype,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            kernel_block_size=1,
            preferred_block_size=16,
            padded_head_dim=spec.head_dim,
        )

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        return [torch.empty(0) for _ in range(num_layers)]

    def plan(self, batch: AttentionBatch) -> None:
        return None

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        """Nothing to write to."""

    def run(self, inputs: GQAInputs, plan: Any) -> Tensor:
        return inputs.query

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        """Nothing to copy."""

    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        layout = self.layout
        return torch.zeros(len(blocks), 2, 0, layout.num_kv_heads, layout.head_dim)

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        """Nothing to import into."""


class NullExecutable(Executable):
    """A replay that launches nothing but one store, and answers token 0 for every logit row."""

    kind = ExecutableKind.CAPTURE

    def __init__(self) -> None:
        self._launch = torch.zeros(1, dtype=torch.int32)
        self._outputs: dict[ShapeKey, StepOutputs] = {}

    def prepare(self, key: ShapeKey, inputs: Any) -> None:
        k = key.mode.num_logprobs
        self._outputs[key] = StepOutputs(
            tokens=torch.zeros(key.logits, 1, dtype=torch.int32),
            logprobs=None
            if k < 0
            else Logprobs(
                chosen=torch.zeros(key.logits),
                rank=torch.ones(key.logits, dtype=torch.int32),
                top_ids=torch.zeros(key.logits, k, dtype=torch.int32),
                top=torch.zeros(key.logits, k),
            ),
        )

    def run(self, key: ShapeKey, inputs: Any) -> StepOutputs:
        if key not in self._outputs:
            self.prepare(key, inputs)
        self._launch.zero_()
        return self._outputs[key]

    def release(self) -> None:
        self._outputs.clear()


class NullExecution(Execution):
    """A capture lattice in steps of eight rows."""

    def shape_policy(self, model: ModelSpec, limits: EngineLimits, capabilities: Capabilities) -> ShapePolicy:
        rows = sorted({1, 2, 4, *range(8, limits.max_rows + 8, 8)})
        return LatticeShapes(
            limits=ScheduleLimits(max_tokens=limits.max_tokens or 8192, max_rows=limits.max_rows),
            decode_rows=tuple(rows),
        )

    def executable(self, fn: Callable[[Any], Any], *, name: str) -> Executable:
        return NullExecutable()


class NullPlatform(Platform):
    """Only ever selected by name."""

    name: ClassVar[str] = "null"
    contract: ClassVar[str] = ">=0.1,<0.2"

    def capabilities(self, device: Device) -> Capabilities:
        return Capabilities(executable=ExecutableKind.CAPTURE, determinism=Determinism.BATCH)

    def register_ops(self, table: OpTable, device: Device) -> None:
        def make(spec: AttentionSpec) -> Kernel:
            return attention_kernel("null", NullAttention(spec), flags=KernelFlags(batch_invariant=True))

        def write_nothing(spec: RowWritesSpec) -> Kernel:
            return Kernel(
                name="null",
                run=lambda state, places, blocks, rows, params: None,
                flags=KernelFlags(batch_invariant=True),
            )

        table.offer(RowWritesSpec, "null", write_nothing)
        features = {"attention.sliding_window", "attention.soft_cap", "attention.sinks"}
        table.offer(AttentionSpec, "null", make, features=features)

    def execution(self, device: Device) -> Execution:
        return NullExecution(device)
