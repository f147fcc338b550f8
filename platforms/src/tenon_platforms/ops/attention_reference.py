"""Reference attention: paged grouped-query attention in plain torch, float32 inside.

Decode rows are computed together on a gathered copy of their context, prefill rows one by one. It is the semantics,
not the speed: the context is copied every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attention import AttentionBackend, GraphSupport, attention_kernel
from ..batch import AttentionBatch, GQAInputs
from ..dtypes import DType
from ..kernel import Kernel, KernelFlags
from ..kv_layout import KVLayout, LayoutKind
from ..torch_dtypes import movable, rounded_to, to_torch
from .quantized_kv import SCALE_BYTES, dequantize_heads, quantize_heads

if TYPE_CHECKING:
    from ..device import Device
    from .attention import AttentionSpec
    from .table import OpTable

NEGATIVE_INFINITY = float("-inf")


@dataclass(slots=True, kw_only=True)
class RowPlan:
    """One prefill row: its tokens [start, end), its positions, and the slots of the context it sees."""

    start: int
    end: int
    positions: Tensor  # [query]
    context: Tensor  # [length] slots
    context_start: int  # position of context[0]


@dataclass(slots=True, kw_only=True)
class ReferencePlan:
    """Decode rows as one padded gather, prefill rows as a list."""

    num_tokens: int
    num_decodes: int
    decode_context: Tensor | None  # [decodes, longest] slots
    decode_visible: Tensor | None  # bool [decodes, longest]
    rows: list[RowPlan]


class ReferenceAttention(AttentionBackend):
    """KV of a layer: [2, blocks, block_size, kv heads, head_dim] on one torch device; int8: head_dim and a scale."""

    graph_support = GraphSupport.NEVER

    def __init__(self, spec: AttentionSpec, device: Device, *, one_by_one: bool) -> None:
        self.spec = spec
        self.device = device
        self.one_by_one = one_by_one
        self.has_scales = spec.kv_dtype == DType.INT8
        self.layout = KVLayout(
            kind=LayoutKind.PAGED,
            id="reference.paged",
            dims=("kv", "block", "token", "kv_head", "head_dim"),
            dtype=spec.kv_dtype,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            kernel_block_size=1,
            preferred_block_size=16,
            padded_head_dim=spec.head_dim,
            scale_bytes_per_token=2 * spec.num_kv_heads * SCALE_BYTES * self.has_scales,
        )

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        width = self.spec.head_dim + SCALE_BYTES * self.has_scales
        shape = (2, num_blocks, block_size, self.spec.num_kv_heads, width)
        return [self.device.zeros(shape, to_torch(self.layout.dtype)) for _ in range(num_layers)]

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        flat = movable(cache).view(2, -1, *cache.shape[3:])  # [2, slots, kv heads, head_dim]
        flat[0].index_copy_(0, slots.long(), self._stored(key))
        flat[1].index_copy_(0, slots.long(), self._stored(value))

    def _stored(self, x: Tensor) -> Tensor:
        """x [..., head_dim] as the cache has it, as `movable` gives it."""
        return movable(quantize_heads(x) if self.has_scales else rounded_to(x, to_torch(self.layout.dtype)))

    def _read(self, stored: Tensor) -> Tensor:
        """The inverse, of what the cache holds."""
        held = stored.view(to_torch(self.layout.dtype))
        return dequantize_heads(held) if self.has_scales else held

    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        host, window, size = batch.host, self.spec.sliding_window, batch.block_size
        table = batch.block_table.index_select(0, batch.rows)  # [rows, blocks]
        starts = [0, *host.query_lens.cumsum().tolist()]
        lengths = host.seq_lens.tolist()
        decodes = 0 if self.one_by_one else host.num_decodes
        context = visible = None
        if decodes:
            longest = int(host.seq_lens[:decodes].max())
            place = torch.arange(longest, device=table.device)
            seq_lens = batch.seq_lens[:decodes, None]
            context = table[:decodes][:, place // size] * size + place % size
            visible = place < seq_lens
            if window:
                visible &= place >= seq_lens - window
        rows = []
        for row in range(decodes, host.num_rows):
            start, end, length = starts[row], starts[row + 1], lengths[row]
            first = max(length - (end - start) + 1 - window, 0) if window else 0
            place = torch.arange(first, length, device=table.device)
            rows.append(
                RowPlan(
                    start=start,
                    end=end,
                    positions=batch.positions[0, start:end],
                    context=table[row, place // size] * size + place % size,
                    context_start=first,
                )
            )
        return ReferencePlan(
            num_tokens=batch.key.tokens,
            num_decodes=decodes,
            decode_context=context,
            decode_visible=visible,
            rows=rows,
        )

    def run(self, inputs: GQAInputs, plan: ReferencePlan) -> Tensor:
        query = inputs.query
        held = movable(inputs.cache).view(2, -1, *inputs.cache.shape[3:])  # keys, values
        output = torch.zeros_like(query)
        if plan.decode_context is not None and plan.decode_visible is not None:
            count = plan.num_decodes
            k, v = (self._read(part[plan.decode_context]) for part in held)  # [decodes, length, kv heads, head_dim]
            output[:count] = self._attend(query[:count, None], k, v, plan.decode_visible[:, None], inputs.sinks)[:, 0]
        for row in plan.rows:
            k, v = (self._read(part[row.context][None]) for part in held)
            place = torch.arange(row.context_start, row.context_start + len(row.context), device=query.device)
            visible = torch.ones(len(row.positions), len(place), dtype=torch.bool, device=query.device)
            if self.spec.causal:
                visible = place <= row.positions[:, None]
            if self.spec.sliding_window:
                visible &= place > row.positions[:, None] - self.spec.sliding_window
            output[row.start : row.end] = self._attend(
                query[None, row.start : row.end], k, v, visible[None], inputs.sinks
            )[0]
        return output

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, sinks: Tensor | None) -> Tensor:
        """q: [rows, query, heads, dim]; k, v: [rows, length, kv heads, dim]; visible: bool [rows, query, length]."""
        rows, queries, heads, dim = q.shape
        group = heads // k.shape[2]
        hidden = ~visible.any(dim=1)[:, :, None, None]  # never let an unwritten slot's NaN through 0 * NaN
        k, v = k.float().masked_fill(hidden, 0), v.float().masked_fill(hidden, 0)
        grouped = q.float().view(rows, queries, k.shape[2], group, dim)
        scores = torch.einsum("rqhgd,rlhd->rhgql", grouped, k) * self.spec.scale
        if self.spec.soft_cap:
            scores = torch.tanh(scores / self.spec.soft_cap) * self.spec.soft_cap
        scores = scores.masked_fill(~visible[:, None, None], NEGATIVE_INFINITY)
        if sinks is not None:
            extra = sinks.float().view(1, k.shape[2], group, 1, 1).expand(rows, -1, -1, queries, -1)
            weights = torch.cat((scores, extra), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        mixed = torch.einsum("rhgql,rlhd->rqhgd", weights, v)
        return mixed.reshape(rows, queries, heads, dim).to(q.dtype)

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        for cache in map(movable, caches):
            cache[:, target.long()] = cache[:, source.long()]

    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        return self._read(movable(cache)[:, blocks.long()]).transpose(0, 1).contiguous()

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        movable(cache)[:, blocks.long()] = self._stored(canonical.transpose(0, 1))


def attention(spec: AttentionSpec, table: OpTable, device: Device) -> Kernel:
    """Paged attention; run(inputs, plan) as `AttentionBackend.run`. Softmax and sums in float32.

    `device`: where the cache lives.
    """
    if spec.tree_mask:
        raise NotImplementedError("the reference attention has no tree mask yet")
    backend = ReferenceAttention(spec, device, one_by_one=table.batch_invariant)
    return attention_kernel(
        "reference", backend, flags=KernelFlags(graph_safe=False, batch_invariant=table.batch_invariant)
    )
