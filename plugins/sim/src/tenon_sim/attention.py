"""Paged attention of the simulated device: fixed shapes, lengths read on the device only, unused blocks full of NaN.

A cache is [blocks, kv heads, 2, block_size, head_dim]; nothing but this file knows. A decode gathers each row's
context; a prefill scores all tokens against the contexts of all rows and masks those of other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend, GraphSupport
from tenon_platforms.batch import AttentionBatch, GQAInputs
from tenon_platforms.kv_layout import KVLayout, LayoutKind
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.torch_dtypes import movable, rounded_to, to_torch

from .device import SimDevice, check_narrow
from .faults import BrokenContractError

KERNEL_BLOCK = 24
HIDDEN = -1e30  # a score that weighs nothing beside any visible one, and leaves a row that sees nothing finite


@dataclass(slots=True, kw_only=True)
class SimPlan:
    """The device tensors of a step; the masks are made from them inside the executable."""

    block_table: Tensor  # [all rows + 1, blocks]
    rows: Tensor
    seq_lens: Tensor
    token_rows: Tensor
    positions: Tensor
    num_blocks: int
    is_decode: bool


class SimAttention(AttentionBackend):
    """Grouped-query attention of one layer group."""

    graph_support = GraphSupport.ALWAYS

    def __init__(self, spec: AttentionSpec, device: SimDevice) -> None:
        self.spec = spec
        self._device = device
        self.layout = KVLayout(
            kind=LayoutKind.PAGED,
            id="sim.paged",
            dims=("block", "kv_head", "kv", "token", "head_dim"),
            dtype=spec.kv_dtype,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            kernel_block_size=KERNEL_BLOCK,
            preferred_block_size=KERNEL_BLOCK,
            padded_head_dim=spec.head_dim,
        )

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        if block_size % KERNEL_BLOCK:
            raise BrokenContractError(f"block size {block_size} is no multiple of {KERNEL_BLOCK}")
        shape = (num_blocks, self.spec.num_kv_heads, 2, block_size, self.spec.head_dim)
        caches = [self._device.zeros(shape, to_torch(self.layout.dtype)) for _ in range(num_layers)]
        for cache in caches:
            cache[1:] = torch.nan
        return caches

    def plan(self, batch: AttentionBatch) -> SimPlan:
        for name in ("block_table", "rows", "seq_lens", "token_rows", "positions", "query_starts", "num_valid"):
            check_narrow(f"attention: {name}", getattr(batch, name).dtype)
        return SimPlan(
            block_table=batch.block_table,
            rows=batch.rows,
            seq_lens=batch.seq_lens,
            token_rows=batch.token_rows,
            positions=batch.positions,
            num_blocks=batch.key.blocks or batch.block_table.shape[1],
            is_decode=batch.key.is_decode,
        )

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        check_narrow("attention: slots", slots.dtype)
        size = cache.shape[3]
        both = movable(rounded_to(torch.stack((key, value), dim=2), cache.dtype))  # [tokens, kv heads, 2, head_dim]
        padding = (slots < size)[:, None, None, None]  # the null block stays zero

        def write(cache: Tensor, both: Tensor, padding: Tensor, slots: Tensor) -> None:
            block, offset = torch.div(slots, size, rounding_mode="floor"), slots % size
            movable(cache).permute(0, 3, 1, 2, 4)[block, offset] = both.masked_fill(padding, 0)

        self._here(write, cache, both, padding, slots)

    def run(self, inputs: GQAInputs, plan: SimPlan) -> Tensor:
        if self._device.is_worker:
            return self._attend(inputs, plan)
        output = self._device.empty(tuple(inputs.query.shape), inputs.query.dtype)

        def work() -> None:
            output.copy_(self._attend(inputs, plan))

        self._device.submit(work)
        return output

    def _attend(self, inputs: GQAInputs, plan: SimPlan) -> Tensor:
        """[tokens, heads, head_dim]; see the module's docstring for the two shapes."""
        query, cache, spec = inputs.query, inputs.cache, self.spec
        tokens, heads, dim = query.shape
        kv_heads, size = cache.shape[1], cache.shape[3]
        table = plan.block_table.index_select(0, plan.rows)[:, : plan.num_blocks]  # [rows, blocks]
        rows, length = table.shape[0], table.shape[1] * size
        context = movable(cache).index_select(0, table.flatten()).view(cache.dtype)
        context = context.view(rows, -1, kv_heads, 2, size, dim)
        context = context.permute(3, 0, 2, 1, 4, 5).reshape(2, rows, kv_heads, length, dim)
        place = torch.arange(length, dtype=torch.int32, device=query.device)
        position = plan.positions[0]
        if plan.is_decode:  # one token a row: [tokens, 1, length]
            owner_len = plan.seq_lens
            visible = self._visible(place[None], position[:, None], owner_len[:, None])[:, None]
            q = query.view(tokens, 1, kv_heads, -1, dim)
        else:  # all tokens against all contexts: [1, tokens, rows * length]
            owner = torch.arange(rows, dtype=torch.int32, device=query.device)[:, None].expand(-1, length).flatten()
            seen = self._visible(place.repeat(rows)[None], position[:, None], plan.seq_lens[owner][None])
            visible = (seen & (owner[None] == plan.token_rows[:, None]))[None]
            context = context.transpose(1, 2).reshape(2, 1, kv_heads, rows * length, dim)
            q = query.view(1, tokens, kv_heads, -1, dim)
        unused = ~visible.any(dim=1)[:, None, :, None]  # never let an unwritten slot's NaN through 0 * NaN
        k, v = context.float().masked_fill(unused, 0).unbind(0)  # [batch, kv heads, length, dim]
        lost = ~v.isfinite().all(dim=-1)  # a row's own NaN must not reach rows that weigh it with zero
        v = v.masked_fill(lost[..., None], 0)
        scores = torch.einsum("bqhgd,bhld->bhgql", q.float(), k) * spec.scale
        if spec.soft_cap:
            scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
        scores = scores.masked_fill(~visible[:, None, None], HIDDEN)
        if inputs.sinks is not None:
            extra = inputs.sinks.float().view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            weights = torch.cat((scores, extra), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        mixed = torch.einsum("bhgql,bhld->bqhgd", weights, v)
        sees = (visible[:, None] & lost[:, :, None]).any(dim=-1)  # [batch, kv heads, query]
        mixed = mixed.masked_fill(sees.transpose(1, 2)[..., None, None], torch.nan)
        return mixed.reshape(tokens, heads, dim).to(query.dtype)

    def _visible(self, place: Tensor, position: Tensor, seq_len: Tensor) -> Tensor:
        visible = place < seq_len
        if self.spec.causal:
            visible = visible & (place <= position)
        if self.spec.sliding_window:
            visible = visible & (place > position - self.spec.sliding_window)
        return visible

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        check_narrow("attention: blocks", source.dtype)

        def copy(source: Tensor, target: Tensor, *caches: Tensor) -> None:
            for cache in map(movable, caches):
                cache.index_copy_(0, target.long(), cache.index_select(0, source))

        self._device.launch("copy_blocks", copy, source, target, *caches)

    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        heads, size, dim = cache.shape[1], cache.shape[3], cache.shape[4]
        canonical = self._device.empty((blocks.shape[0], 2, size, heads, dim), cache.dtype)

        def export(cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
            movable(canonical).copy_(movable(cache).index_select(0, blocks).permute(0, 2, 3, 1, 4))

        self._device.launch("export_blocks", export, cache, blocks, canonical)
        return canonical

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        def bring(cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
            lines = movable(rounded_to(canonical.permute(0, 3, 1, 2, 4), cache.dtype))
            movable(cache).index_copy_(0, blocks.long(), lines)

        self._device.launch("import_blocks", bring, cache, blocks, canonical)

    def _here(self, fn: Any, *tensors: Tensor) -> None:
        """Inside an executable: now; from the host: queued."""
        if self._device.is_worker:
            fn(*tensors)
        else:
            self._device.submit(lambda: fn(*tensors))
