"""Bugs of attention backends."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from mutations.planting import Registry, backend
from torch import Tensor

from tenon_platforms.batch import AttentionBatch, GQAInputs
from tenon_platforms.ops.attention_reference import ReferenceAttention, ReferencePlan


def with_spec(**changes: Any) -> type[ReferenceAttention]:
    """The backend of another spec, over the right layout."""

    class Changed(ReferenceAttention):
        def __init__(self, spec: Any, device: Any, *, one_by_one: bool) -> None:
            super().__init__(spec, device, one_by_one=one_by_one)
            known = {name: change(spec) for name, change in changes.items()}
            self.spec = dataclasses.replace(spec, **known)

    return Changed


class BlockOffByOne(ReferenceAttention):
    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        table = batch.block_table.roll(1, dims=1) if batch.host.max_seq > 2 * batch.block_size else batch.block_table
        return super().plan(dataclasses.replace(batch, block_table=table))


class SeesOneTooMany(ReferenceAttention):
    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        host = dataclasses.replace(batch.host, seq_lens=batch.host.seq_lens + 1)
        return super().plan(dataclasses.replace(batch, host=host, seq_lens=batch.seq_lens + 1))


class MissesTheNewest(ReferenceAttention):
    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        plan = super().plan(batch)
        if plan.decode_visible is not None:
            place = torch.arange(plan.decode_visible.shape[1])
            last = place == batch.seq_lens[: plan.num_decodes, None] - 1
            plan.decode_visible = plan.decode_visible & (~last | (batch.seq_lens[: plan.num_decodes, None] == 1))
        return plan


class RowIndexIgnored(ReferenceAttention):
    """Row i of the batch is taken to be row i of the table."""

    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        rows = torch.arange(len(batch.rows), dtype=torch.int32)
        return super().plan(dataclasses.replace(batch, rows=rows))


class LayoutOfHalf(ReferenceAttention):
    """A layout that says half of what a head takes."""

    def __init__(self, spec: Any, device: Any, *, one_by_one: bool) -> None:
        super().__init__(spec, device, one_by_one=one_by_one)
        self.layout = dataclasses.replace(self.layout, padded_head_dim=spec.head_dim // 2)


class GroupsInterleaved(ReferenceAttention):
    """Query head h reads KV head h % kv_heads instead of h // group."""

    def run(self, inputs: GQAInputs, plan: ReferencePlan) -> Tensor:
        heads, kv = self.spec.num_heads, self.spec.num_kv_heads
        order = torch.arange(heads).view(-1, kv).T.flatten()
        found = super().run(dataclasses.replace(inputs, query=inputs.query[:, order]), plan)
        return found[:, order.argsort()]


class SwappedStrides(ReferenceAttention):
    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        super().write_kv(value, key, cache, slots)


class HeadStride(ReferenceAttention):
    """The cache is indexed as [head, slot] where it is [slot, head]."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        if key.shape[1] > 1:
            key = key.flatten(1).view(len(key), key.shape[2], key.shape[1]).transpose(1, 2)
        super().write_kv(key, value, cache, slots)


class ZeroTimesNaN(ReferenceAttention):
    """Masks by multiplying with zero."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, sinks: Tensor | None) -> Tensor:
        found = super()._attend(q, k, v, visible, sinks)
        spread = (k.float().sum((1, 2, 3)) + v.float().sum((1, 2, 3))) * 0
        return found + spread[:, None, None, None].to(found.dtype)


class SoftmaxWithoutMax(ReferenceAttention):
    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, sinks: Tensor | None) -> Tensor:
        hidden = ~visible.any(dim=1)[:, :, None, None]
        group = q.shape[2] // k.shape[2]
        k, v = (part.masked_fill(hidden, 0).float().repeat_interleave(group, 2) for part in (k, v))
        scores = torch.einsum("rqhd,rlhd->rhql", q.float(), k) * self.spec.scale
        weights = scores.exp().masked_fill(~visible[:, None], 0)
        return torch.einsum("rhql,rlhd->rqhd", weights / weights.sum(-1, keepdim=True), v).to(q.dtype)


class HalfSums(ReferenceAttention):
    """Scores and sums in float16."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, sinks: Tensor | None) -> Tensor:
        return super()._attend(q.half(), k.half(), v.half(), visible, sinks).half().to(q.dtype)


class PaddingLeak(ReferenceAttention):
    """Padding tokens are left as the allocator gave them."""

    def run(self, inputs: GQAInputs, plan: ReferencePlan) -> Tensor:
        found = super().run(inputs, plan)
        done = plan.num_decodes if not plan.rows else plan.rows[-1].end
        found[done:] = float("nan")
        return found


class WritesWholeBlock(ReferenceAttention):
    """The tail of the block that a token goes to is overwritten too."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        size = cache.shape[2]
        for slot in slots.long().tolist():
            cache[:, slot // size, slot % size :] = 0
        super().write_kv(key, value, cache, slots)


class CopiesFirstLayer(ReferenceAttention):
    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        super().copy_blocks(caches[:1], source, target)


class CopiesBackwards(ReferenceAttention):
    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        super().copy_blocks(caches, target, source)


class ExportsValuesFirst(ReferenceAttention):
    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        return super().export_blocks(cache, blocks).flip(1)


class TouchesTheNullBlock(ReferenceAttention):
    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        super().write_kv(key, value, cache, slots)
        cache[:, 0, 0] = 1.0


class ScalesTheQueryInPlace(ReferenceAttention):
    def run(self, inputs: GQAInputs, plan: ReferencePlan) -> Tensor:
        found = super().run(inputs, plan)
        inputs.query.mul_(self.spec.scale)
        return found


class ChunkStartsAtZero(ReferenceAttention):
    """A chunk's queries are taken to be the first of their row."""

    def plan(self, batch: AttentionBatch) -> ReferencePlan:
        plan = super().plan(batch)
        for row in plan.rows:
            row.positions = row.positions - row.positions[:1]
        return plan


class SmallSlots(ReferenceAttention):
    """Slots are kept in 16 bits: an overflow as int32's is with a larger pool."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        super().write_kv(key, value, cache, slots.to(torch.int16).int() & 0x7FFF)


class OneSharedCache(ReferenceAttention):
    """Every layer gets the same memory."""

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        return super().allocate(num_blocks, block_size, 1) * num_layers


class DirtyNullBlock(ReferenceAttention):
    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        caches = super().allocate(num_blocks, block_size, num_layers)
        for cache in caches:
            cache[:, 0] = 0.5
        return caches


def register(to: Registry) -> None:
    """All of them."""
    gqa, window, mqa = "L2/attention/float32-gqa", "L2/attention/float32-window", "L2/attention/float32-mqa"
    cache = "L2/kv_cache/float32-gqa"
    for name, check, what, cls in (
        ("block-off-by-one", gqa, "block table read one entry off", BlockOffByOne),
        ("one-token-too-many", gqa, "sequence length one too large", SeesOneTooMany),
        ("newest-token-missed", gqa, "a decode does not see its own token", MissesTheNewest),
        ("row-index-ignored", gqa, "rows taken in batch order", RowIndexIgnored),
        ("gqa-interleaved", gqa, "wrong query head to KV head mapping", GroupsInterleaved),
        ("scale-twice", gqa, "scores scaled by scale squared", with_spec(scale=lambda s: s.scale**2)),
        (
            "scale-of-padded-head",
            mqa,
            "scale of another head size",
            with_spec(scale=lambda s: (s.head_dim * 2) ** -0.5),
        ),
        ("mask-missing", gqa, "prefill without the causal mask", with_spec(causal=lambda s: False)),
        (
            "window-off-by-one",
            window,
            "window one token short",
            with_spec(sliding_window=lambda s: max(s.sliding_window - 1, 0)),
        ),
        ("window-ignored", window, "sliding window not applied", with_spec(sliding_window=lambda s: 0)),
        (
            "soft-cap-ignored",
            "L2/attention/float32-soft-cap",
            "soft cap not applied",
            with_spec(soft_cap=lambda s: 0.0),
        ),
        ("nan-spill", gqa, "masking by multiplying with zero", ZeroTimesNaN),
        ("softmax-overflow", gqa, "softmax without subtracting the maximum", SoftmaxWithoutMax),
        ("half-sums", gqa, "float32 attention summed in float16", HalfSums),
        ("padding-leak", gqa, "padding rows left unwritten", PaddingLeak),
        ("query-scaled-in-place", gqa, "the kernel scales its input", ScalesTheQueryInPlace),
        ("chunk-at-zero", "L2/chunks/float32-gqa", "a later chunk masked as the first", ChunkStartsAtZero),
        ("kv-swapped", cache, "K and V strides swapped", SwappedStrides),
        ("head-stride", cache, "head and dim strides swapped in the write", HeadStride),
        ("writes-whole-block", cache, "the rest of a block overwritten", WritesWholeBlock),
        ("copies-first-layer", cache, "copy_blocks forgets layers", CopiesFirstLayer),
        ("copies-backwards", cache, "copy_blocks from target to source", CopiesBackwards),
        ("exports-values-first", cache, "canonical form in another order", ExportsValuesFirst),
        ("null-block-touched", cache, "write_kv dirties the null block", TouchesTheNullBlock),
        ("null-block-dirty", cache, "allocate leaves garbage in the null block", DirtyNullBlock),
        ("slot-overflow", "L2/far_slots/float32-gqa", "slots overflow their integer", SmallSlots),
        ("one-shared-cache", cache, "layers share memory", OneSharedCache),
        ("layout-of-half", cache, "a layout that says half of the bytes", LayoutOfHalf),
    ):
        to.add(name, check, what, backend(cls))
