"""Paged attention of the CPU platform: decode reads the cache where it lies, prefill gathers a row's context once.

Decode, for rows of about the same length together:

    scores  one bag a (row, head, block): head_dim lines of keys, weighted by the query    -> block_size scores
    output  one bag a (row, head): the context's lines of values, weighted by probabilities -> head_dim

Bags are `torch.embedding_bag` (FBGEMM's generated kernels on x86); their index tensors depend on the step alone, so
`plan` makes them once for all layers. Unwritten and foreign slots are read only into scores that are masked away.
Costs: reads K and V once a query head, from cache lines the heads of a group share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tenon_platforms.attention import AttentionBackend, GraphSupport
from tenon_platforms.batch import AttentionBatch, GQAInputs
from tenon_platforms.device import Device
from tenon_platforms.ops.attention import AttentionSpec

from . import kv_cache
from .step_memo import StepMemo

NEGATIVE_INFINITY = float("-inf")
GROUP_COST = 512  # tokens of context that cost as much as the calls of one more group


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBags:
    """Decode rows that are computed together.

    rows: int64 [n], places in the batch, None: its first n. length: of the longest context. hidden: bool
    [n, 1, length], None: every row is that long. Indices and offsets as `embedding_bag` wants them, int32.
    """

    rows: Tensor | None
    num_rows: int
    num_blocks: int
    length: int
    hidden: Tensor | None
    key_lines: Tensor
    key_offsets: Tensor
    value_lines: Tensor
    value_offsets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """One row with several tokens, [start, end) of the batch; it sees `length` tokens from the start of `blocks`.

    visible: bool [query, length], None: causal from the row's beginning.
    """

    start: int
    end: int
    length: int
    blocks: Tensor
    visible: Tensor | None


@dataclass(slots=True, kw_only=True)
class CPUPlan:
    """One step's attention."""

    num_tokens: int
    decodes: list[DecodeBags] = field(default_factory=list)
    prefills: list[PrefillRow] = field(default_factory=list)


class CPUAttention(AttentionBackend):
    """Grouped-query attention over `kv_cache`, with or without a sliding window."""

    graph_support = GraphSupport.NEVER
    needs_exact_host_lengths = True

    def __init__(self, spec: AttentionSpec, memo: StepMemo, device: Device) -> None:
        self.spec = spec
        self._device = device
        self.layout = kv_cache.kv_layout(spec.num_kv_heads, spec.head_dim)
        self._memo = memo
        heads = torch.arange(spec.num_heads, dtype=torch.int32)
        self._kv_head = torch.div(heads, spec.num_heads // spec.num_kv_heads, rounding_mode="floor")
        self._dims = torch.arange(spec.head_dim, dtype=torch.int32)

    # the cache

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        shape = kv_cache.shape_of(num_blocks, block_size, self.spec.num_kv_heads, self.spec.head_dim)
        return [self._device.zeros(shape, torch.float32) for _ in range(num_layers)]

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        block_size = cache.shape[-1] // self.spec.head_dim
        kv_cache.write(key, value, cache, kv_cache.split_slots(slots, block_size))

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        kv_cache.copy_blocks(caches, source, target)

    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        return kv_cache.export_blocks(cache, blocks, self.spec.head_dim)

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        kv_cache.import_blocks(cache, blocks, canonical)

    # once a step

    def plan(self, batch: AttentionBatch) -> CPUPlan:
        self._memo.forget()
        host = batch.host
        table = batch.block_table.index_select(0, batch.rows)  # [rows, blocks]
        plan = CPUPlan(num_tokens=batch.key.tokens)
        lengths = host.seq_lens.tolist()
        if host.num_decodes:
            for members in _split_by_length(lengths[: host.num_decodes]):
                plan.decodes.append(self._plan_decode(table, batch, members, lengths, host.num_decodes))
        end = host.num_decodes
        for row in range(host.num_decodes, host.num_rows):
            start, end = end, end + int(host.query_lens[row])
            plan.prefills.append(self._plan_prefill(table[row], batch, start, end, lengths[row]))
        return plan

    def _plan_decode(
        self, table: Tensor, batch: AttentionBatch, members: list[int], lengths: list[int], num_decodes: int
    ) -> DecodeBags:
        size, window = batch.block_size, self.spec.sliding_window
        held = [lengths[row] for row in members]
        firsts = [max(length - window, 0) // size if window else 0 for length in held]
        counts = [-(-length // size) - first for length, first in zip(held, firsts, strict=True)]
        longest = max(length - first * size for length, first in zip(held, firsts, strict=True))
        num_blocks, num_rows = max(counts), len(members)
        rows = None if num_rows == num_decodes else torch.tensor(members)
        mine = table[:num_decodes] if rows is None else table.index_select(0, rows)
        first = torch.tensor(firsts, dtype=torch.int32)[:, None]  # [rows, 1]
        last = torch.tensor(held, dtype=torch.int32)[:, None] - 1
        block = torch.arange(num_blocks, dtype=torch.int32) + first
        block = torch.minimum(block, torch.div(last, size, rounding_mode="floor"))  # past the end: the last again
        blocks = mine.gather(1, block.long())  # [rows, num_blocks]
        place = torch.arange(longest, dtype=torch.int32) + first * size  # position of a column
        visible_place = torch.minimum(place, last)
        if window:
            visible_place = torch.maximum(visible_place, last - (window - 1))
        return DecodeBags(
            rows=rows,
            num_rows=num_rows,
            num_blocks=num_blocks,
            length=longest,
            hidden=None if bool((visible_place == place).all()) else (visible_place != place)[:, None],
            key_lines=self._key_lines(blocks),
            key_offsets=_offsets(num_rows * self.spec.num_heads * num_blocks, self.spec.head_dim),
            value_lines=self._value_lines(mine, visible_place, size),
            value_offsets=_offsets(num_rows * self.spec.num_heads, longest),
        )

    def _key_lines(self, blocks: Tensor) -> Tensor:
        lines = blocks[:, None, :] * self.spec.num_kv_heads + self._kv_head[:, None]  # [rows, heads, blocks]
        return (lines[..., None] * self.spec.head_dim + self._dims).view(-1)

    def _value_lines(self, table: Tensor, place: Tensor, size: int) -> Tensor:
        index = torch.div(place, size, rounding_mode="floor")
        block, offset = table.gather(1, index.long()), place - index * size  # [rows, length]
        first = block * (self.spec.num_kv_heads * size) + offset
        return (first[:, None, :] + (self._kv_head * size)[:, None]).view(-1)

    def _plan_prefill(self, table: Tensor, batch: AttentionBatch, start: int, end: int, length: int) -> PrefillRow:
        size, window = batch.block_size, self.spec.sliding_window
        position = length - (end - start)  # of the first token
        first = max(position + 1 - window, 0) // size if window else 0
        length -= first * size
        visible = None
        if position or (window and length > window):
            place = torch.arange(length)
            query = torch.arange(end - start)[:, None] + (position - first * size)
            visible = place <= query
            if window:
                visible &= place > query - window
        blocks = table[first : first + -(-length // size)]
        return PrefillRow(start=start, end=end, length=length, blocks=blocks, visible=visible)

    # once a layer

    def run(self, inputs: GQAInputs, plan: CPUPlan) -> Tensor:
        query, cache = inputs.query, inputs.cache
        if not plan.prefills and len(plan.decodes) == 1 and plan.decodes[0].num_rows == plan.num_tokens:
            return self._decode(query, cache, plan.decodes[0])
        output = torch.zeros(query.shape, dtype=query.dtype)
        for bags in plan.decodes:
            rows = slice(0, bags.num_rows) if bags.rows is None else bags.rows
            output[rows] = self._decode(query[rows], cache, bags)
        for row in plan.prefills:
            output[row.start : row.end] = self._prefill(query[row.start : row.end], cache, row)
        return output

    def _decode(self, query: Tensor, cache: Tensor, bags: DecodeBags) -> Tensor:
        """query: [rows, heads, head_dim]."""
        heads, dim = self.spec.num_heads, self.spec.head_dim
        keys, values = cache[0].view(-1, cache.shape[-1] // dim), cache[1].view(-1, dim)
        weights = query.float().mul(self.spec.scale)[:, :, None, :].expand(-1, -1, bags.num_blocks, -1)
        scores = _weighted_sums(keys, bags.key_lines, bags.key_offsets, weights.reshape(-1))
        scores = scores.view(bags.num_rows, heads, -1)[:, :, : bags.length]
        if bags.hidden is not None:
            scores.masked_fill_(bags.hidden, NEGATIVE_INFINITY)
        probabilities = scores.softmax(-1).view(-1)
        mixed = _weighted_sums(values, bags.value_lines, bags.value_offsets, probabilities)
        return mixed.view(bags.num_rows, heads, dim).to(query.dtype)

    def _prefill(self, query: Tensor, cache: Tensor, row: PrefillRow) -> Tensor:
        """query: [tokens, heads, head_dim]. The query heads of a KV head are SDPA's heads, the KV heads its batch."""
        spec, group = self.spec, self.spec.num_heads // self.spec.num_kv_heads
        found = cache.index_select(1, row.blocks)  # [2, blocks, kv heads, ...]
        keys = kv_cache.keys_of(found, spec.head_dim).permute(1, 0, 3, 2).flatten(1, 2)[:, : row.length]
        values = kv_cache.values_of(found, spec.head_dim).transpose(0, 1).flatten(1, 2)[:, : row.length]
        mixed = scaled_dot_product_attention(
            query.float().unflatten(1, (spec.num_kv_heads, group)).permute(1, 2, 0, 3),
            keys[:, None].expand(-1, group, -1, -1),
            values[:, None].expand(-1, group, -1, -1),
            attn_mask=row.visible,
            is_causal=row.visible is None,
            scale=spec.scale,
        )  # [kv heads, group, tokens, head_dim]
        return mixed.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype)


def _weighted_sums(table: Tensor, lines: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Per bag, the sum of its lines of `table`, weighted: [bags, width]."""
    sums: Tensor = torch._embedding_bag_forward_only(table, lines, offsets, False, 0, False, weights, True)[0]
    return sums


def _offsets(count: int, step: int) -> Tensor:
    return torch.arange(0, (count + 1) * step, step, dtype=torch.int32)


def _split_by_length(lengths: list[int]) -> list[list[int]]:
    """Rows in groups that are padded to their longest: a new group begins where padding would cost more than it."""
    groups: list[list[int]] = []
    padding = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        padding += lengths[groups[-1][0]] - lengths[row] if groups else 0
        if not groups or padding > GROUP_COST:
            groups.append([])
            padding = 0
        groups[-1].append(row)
    return [list(range(len(lengths)))] if len(groups) == 1 else groups
