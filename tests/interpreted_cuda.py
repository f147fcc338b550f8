"""The CUDA platform where there is no GPU: its execution over recorded calls, its kernels in Triton's interpreter."""

from __future__ import annotations

from typing import Any

from attention_cases import FACTS, SMALL
from replayed_calls import CallRecorder

from tenon_cuda.execution import CUDAExecution
from tenon_cuda.options import CUDAOptions
from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import Execution
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.platform import Platform
from tenon_triton.attention.offer import FEATURES, paged_attention
from tenon_triton.ops.rope_kv import qk_norm_rope_kv_write
from tenon_triton.ops.rows import prepare_inputs, row_writes


class InterpretedCUDA(Platform):
    """The CUDA platform's execution, its attention, and its kernels on the rows' memory, on the CPU."""

    name = "cuda"
    contract = ">=0.1,<0.2"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.settings = CUDAOptions(**options)
        self.recorder = CallRecorder()

    def capabilities(self, device: Device) -> Capabilities:
        dtypes = (DType.FLOAT32, DType.FLOAT8_E4M3)
        return Capabilities(dtypes=dtypes[:1], kv_dtypes=dtypes, determinism=Determinism.BATCH)

    def register_ops(self, table: OpTable, device: Device) -> None:
        invariant = table.batch_invariant
        table.offer(
            AttentionSpec,
            "triton.paged",
            lambda spec: paged_attention(spec, device, FACTS, batch_invariant=invariant, configs=SMALL),
            features=FEATURES,
        )
        table.offer(PrepareInputsSpec, "triton", prepare_inputs)
        table.offer(RowWritesSpec, "triton", row_writes)

    def execution(self, device: Device) -> Execution:
        return CUDAExecution(device, self.settings, recorder=self.recorder)


class InterpretedKVWrites(InterpretedCUDA):
    """As above, and what goes into the cache goes through its kernel: a program a token, which takes its time."""

    def register_ops(self, table: OpTable, device: Device) -> None:
        super().register_ops(table, device)
        table.offer(QKNormRopeKVWriteSpec, "triton one launch", qk_norm_rope_kv_write)
