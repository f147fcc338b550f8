"""Prompts on Hopper: which go through `warpgroup_kernel`, and its launch. The kernel is imported with the first one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tenon_platforms.attention import GraphSupport
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec

from ..capabilities import Arch
from .experimental import kernels_of

if TYPE_CHECKING:
    from tenon_platforms.batch import AttentionBatch
    from tenon_triton.attention.launch import Context

ARCH = Arch(9, 0)  # its successors have other products
REGISTERS = 168  # of a thread in 12 warps: what the fetching warps leave goes to the two attending groups
PAGE, HEAD_DIM = 64, 128  # what the kernel is written for
WIDEST_GROUP = 64
KERNELS = "warpgroup_kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarpgroupPlan:
    """Rows [first_row, first_row + num_rows), which hold at most `num_tokens` tokens together."""

    kernel: Any
    spec: AttentionSpec
    first_row: int
    num_rows: int
    num_tokens: int

    def run(self, output: Tensor, query: Tensor, cache: Tensor, context: Context) -> None:
        spec = self.spec
        group = spec.num_heads // spec.num_kv_heads
        grid = (spec.num_kv_heads, self.num_tokens // (self.kernel.BLOCK_LINES // group) + self.num_rows)
        self.kernel.warpgroup_prefill_kernel[grid](
            output,
            query,
            self.kernel.lines_of(cache),
            context.block_table,
            context.rows,
            context.query_starts,
            context.seq_lens,
            self.first_row,
            self.num_rows,
            context.block_table.stride(0),
            query.stride(0),
            query.stride(1),
            output.stride(0),
            spec.scale * math.log2(math.e),
            NUM_KV_HEADS=spec.num_kv_heads,
            GROUP=group,
            CAUSAL=spec.causal,
            APART=context.decodes_apart,
            num_warps=4,
            maxnreg=REGISTERS,
        )


@dataclass(frozen=True, slots=True)
class WarpgroupPrompts:
    """`tenon_triton.attention.LongPrompts` for one architecture."""

    arch: Arch

    def takes(self, spec: AttentionSpec, block_size: int) -> bool:
        """Whether the kernel computes this here."""
        group = spec.num_heads // spec.num_kv_heads
        return (
            self.arch == ARCH
            and spec.head_dim == HEAD_DIM
            and spec.dtype in (DType.BFLOAT16, DType.FLOAT16)
            and spec.kv_dtype == spec.dtype
            and block_size == PAGE
            and group <= WIDEST_GROUP
            and group & (group - 1) == 0
            and spec.sliding_window == 0
            and spec.soft_cap == 0
            and not spec.sinks
            and kernels_of(KERNELS) is not None
        )

    @property
    def graph_support(self) -> GraphSupport:
        return GraphSupport.ALWAYS

    @property
    def needs_exact_host_lengths(self) -> bool:
        return False

    @property
    def workspace_bytes(self) -> int:
        return 0

    def warm(self, spec: AttentionSpec, block_size: int) -> None:
        """Nothing: the first prompt compiles it, or finds it in Triton's cache."""

    def plan(self, batch: AttentionBatch, first_row: int, spec: AttentionSpec) -> WarpgroupPlan:
        return WarpgroupPlan(
            kernel=kernels_of(KERNELS),
            spec=spec,
            first_row=first_row,
            num_rows=batch.key.rows - first_row,
            num_tokens=batch.key.tokens - first_row,  # rows before it have one token each
        )
