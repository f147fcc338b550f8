"""Paged attention by the native library: the cache in tiles of 16 tokens, read where it lies, in decode and prefill.

    cache  [blocks, kv heads, 2, block_size * head_dim]; native/src/attention/attention.inl draws the tiles
           int8: head_dim + 4, sixteen scales behind each tile's codes
    pool   [blocks, layers, ...]: a block's layers are neighbours, so that few blocks are few large pages

`plan` splits a step over threads once for all layers; a decode row's context is split by its own length alone, so a
token's result does not depend on its batch. Lengths and tables are read when the kernel runs: a static key's plan is
brought up to date in place, which is what the tape replays on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend, GraphSupport
from tenon_platforms.batch import AttentionBatch, GQAInputs
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import No
from tenon_platforms.kv_layout import KVLayout, LayoutKind
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.quantized_kv import SCALE_BYTES
from tenon_platforms.torch_dtypes import to_torch

from . import native
from .step_calls import KV_TYPES, TYPES, bound, kernel

LAYOUT_ID = "cpu.tiles-of-16.v1"
TILE, MOST_PARTS, PLAN_HEADER = 16, 16, 8  # as in native/src/step/params.h
PREFERRED_BLOCK = 64
MOST_HEAD_DIM = 1024


def token_width(head_dim: int, stored: torch.dtype) -> int:
    """Elements of the cache that a token's keys, or its values, of one head take: int8 codes have a float32 scale."""
    return head_dim + (SCALE_BYTES if stored == torch.int8 else 0)


@dataclass(slots=True, kw_only=True)
class NativePlan:
    """One step's split. lines: int32, as params.h says. partials, counters: where split rows meet.

    split: computes `lines` anew from the tensors of `batch`, a static key's own.
    """

    lines: Tensor
    partials: Tensor
    counters: Tensor
    block_table: Tensor
    block_size: int
    parts: int
    batch: tuple[Tensor, ...] = ()
    split: Callable[[], None] | None = None


def plan_parts(threads: int) -> int:
    """Parts that a step's attention is cut into: several a thread, which take them as they come."""
    return 1 if threads == 1 else 4 * threads


def refuses(spec: AttentionSpec) -> No | None:
    """Why the native kernel does not serve `spec`, or None."""
    if (reason := native.why_not()) is not None:
        return No(reason)
    width = 16 if native.ISAS.index(native.current_isa()) >= native.ISAS.index("avx512") else 8
    if spec.head_dim % width or spec.head_dim > MOST_HEAD_DIM:
        return No(f"computes heads whose dim is a multiple of {width} up to {MOST_HEAD_DIM}, not {spec.head_dim}")
    if to_torch(spec.dtype) not in TYPES:
        return No(f"computes float32, bfloat16 and float16, not {spec.dtype}")
    if to_torch(spec.kv_dtype) not in KV_TYPES:
        return No(f"has caches of float32, bfloat16, float16 and int8, not {spec.kv_dtype}")
    if spec.num_heads % spec.num_kv_heads:
        return No(f"{spec.num_heads} heads over {spec.num_kv_heads} KV heads is no whole group")
    return None


def has_tiles(spec: AttentionSpec) -> bool:
    """Whether prompts go by AMX's tiles, whose weights are rounded; a prompt's last token on its own has vectors."""
    is_bfloat16 = spec.dtype == spec.kv_dtype == DType.BFLOAT16
    return is_bfloat16 and spec.head_dim % 32 == 0 and native.current_isa() == "amx"


class NativeAttention(AttentionBackend):
    """Grouped-query attention with windows, soft cap, sinks, causal or not."""

    graph_support = GraphSupport.SINGLE_TOKEN_DECODE
    needs_exact_host_lengths = False

    def __init__(self, spec: AttentionSpec, device: Device) -> None:
        self.spec = spec
        self._device = device
        self._width = token_width(spec.head_dim, to_torch(spec.kv_dtype))
        self.layout = KVLayout(
            kind=LayoutKind.PAGED,
            id=LAYOUT_ID,
            dims=("block", "kv_head", "kv", "tile of 16 x head_dim"),
            dtype=spec.kv_dtype,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            kernel_block_size=TILE,
            preferred_block_size=PREFERRED_BLOCK,
            padded_head_dim=spec.head_dim,
            scale_bytes_per_token=2 * spec.num_kv_heads * (self._width - spec.head_dim),
        )
        self._group = spec.num_heads // spec.num_kv_heads
        self._types = (TYPES[to_torch(spec.dtype)], KV_TYPES[to_torch(spec.kv_dtype)])
        self._partials = torch.empty(0)
        self._counters = torch.zeros(0, dtype=torch.int32)

    # the cache

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        shape = (num_blocks, num_layers, self.spec.num_kv_heads, 2, block_size * self._width)
        return list(self._device.zeros(shape, to_torch(self.spec.kv_dtype)).unbind(1))

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        key, value = (part if part.stride()[1:] == (part.shape[2], 1) else part.contiguous() for part in (key, value))
        kernel("write_kv")(
            key=key,
            value=value,
            cache=cache,
            slots=slots,
            tokens=key.shape[0],
            key_stride=key.stride(0),
            value_stride=value.stride(0),
            cache_stride=cache.stride(0),
            block_size=self._block_size(cache),
            kv_heads=self.spec.num_kv_heads,
            dim=self.spec.head_dim,
            type=TYPES[key.dtype],
            kv_type=self._types[1],
        )

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        wide = source.long(), target.long()
        for cache in caches:
            cache.index_copy_(0, wide[1], cache.index_select(0, wide[0]))

    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        shape = (blocks.shape[0], 2, self._block_size(cache), self.spec.num_kv_heads, self.spec.head_dim)
        canonical = torch.empty(shape, dtype=to_torch(self.layout.canonical_dtype))
        self._exchange(cache, blocks, canonical, imports=0)
        return canonical

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        self._exchange(cache, blocks, canonical.to(to_torch(self.layout.canonical_dtype)).contiguous(), imports=1)

    def _exchange(self, cache: Tensor, blocks: Tensor, canonical: Tensor, *, imports: int) -> None:
        blocks = blocks.to(torch.int32).contiguous()
        kernel("exchange_blocks")(
            cache=cache,
            canonical=canonical,
            blocks=blocks,
            count=blocks.shape[0],
            cache_stride=cache.stride(0),
            block_size=self._block_size(cache),
            kv_heads=self.spec.num_kv_heads,
            dim=self.spec.head_dim,
            kv_type=self._types[1],
            imports=imports,
        )

    def _block_size(self, cache: Tensor) -> int:
        return cache.shape[-1] // self._width

    # once a step

    def plan(self, batch: AttentionBatch) -> NativePlan:
        rows, heads, parts = batch.rows.shape[0], self.spec.num_kv_heads, plan_parts(native.num_threads())
        pairs, part = rows * heads, self._group * (self.spec.head_dim + 2)
        if self._counters.shape[0] < pairs:  # plans of static keys keep the ones they began with
            self._counters = torch.zeros(pairs, dtype=torch.int32)
            self._partials = torch.empty(pairs * MOST_PARTS * part)
        plan = NativePlan(
            lines=torch.zeros(PLAN_HEADER + 8 * rows + 4 * (parts + 1), dtype=torch.int32),
            partials=self._partials,
            counters=self._counters,
            block_table=batch.block_table,
            block_size=batch.block_size,
            parts=parts,
        )
        return self.update(plan, batch)

    def update(self, plan: NativePlan, batch: AttentionBatch) -> NativePlan:
        read = (batch.rows, batch.query_starts, batch.seq_lens, batch.num_valid)
        if plan.split is None or any(one is not other for one, other in zip(plan.batch, read, strict=True)):
            plan.batch, plan.split = read, self._split(plan, batch)
        plan.split()
        return plan

    def _split(self, plan: NativePlan, batch: AttentionBatch) -> Callable[[], None]:
        return bound(
            "attention_plan",
            rows=batch.rows,
            query_starts=batch.query_starts,
            seq_lens=batch.seq_lens,
            num_valid=batch.num_valid,
            plan=plan.lines,
            num_rows=batch.rows.shape[0],
            threads=plan.parts,
            kv_heads=self.spec.num_kv_heads,
            group=self._group,
            window=self.spec.sliding_window,
            causal=self.spec.causal,
        )

    # once a layer

    def run(self, inputs: GQAInputs, plan: NativePlan) -> Tensor:
        spec, query = self.spec, inputs.query.contiguous()
        output = torch.empty(query.shape, dtype=query.dtype)
        sinks: Any = None if inputs.sinks is None else inputs.sinks.float().contiguous()
        kernel("attention")(
            query=query,
            output=output,
            cache=inputs.cache,
            sinks=sinks,
            block_table=plan.block_table,
            plan=plan.lines,
            partials=plan.partials,
            counters=plan.counters,
            table_stride=plan.block_table.stride(0),
            tokens=query.shape[0],
            cache_stride=inputs.cache.stride(0),
            block_size=plan.block_size,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            dim=spec.head_dim,
            window=spec.sliding_window,
            causal=spec.causal,
            type=TYPES[query.dtype],
            kv_type=self._types[1],
            scale=spec.scale,
            soft_cap=spec.soft_cap,
        )
        return output
