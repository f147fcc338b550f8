"""Packing a step's index tensors: one int32 buffer on the host, one copy, views of it on the device.

    [ num_valid | token_ids | positions | token_rows | rows | query_starts | seq_lens |
      logit_index | logit_rows | targets | write_places | write_blocks ]

Every part begins at a multiple of 64 bytes, whatever the sizes before it: kernels that are compiled for the alignment
of what they read are compiled once. Views are made once per padded size and kept, so a static key always sees the same
tensors and a steady decode step writes a few slices. Host buffers rotate, because the device may still be reading the
last ones; one that shares the host's memory has read them when a step is launched: there is one buffer, and no copy.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenon_platforms.batch import HostBatch, StepInputs
from tenon_platforms.device import Device
from tenon_platforms.shapes import ShapeKey

from .delta import Int32, StepDelta

SECTIONS = (
    "num_valid",
    "token_ids",
    "positions",
    "token_rows",
    "rows",
    "query_starts",
    "seq_lens",
    "logit_index",
    "logit_rows",
    "targets",
    "write_places",
    "write_blocks",
)
ALIGNED = 16  # int32s
KEPT_SIZES = 64  # padded sizes whose views are kept, beside all static ones


@dataclass(slots=True, kw_only=True)
class _Views:
    """One padded size's views of every host buffer and of the device buffer."""

    host: list[dict[str, Int32]]
    host_used: list[Tensor]
    device: dict[str, Tensor]
    device_used: Tensor


class StepPacker:
    """Packs deltas. `depth` host buffers rotate. tables: shape of the block tables, whose last row is the dummy row.

    has_segments: the last axis of positions holds token types.
    """

    def __init__(
        self,
        *,
        device: Device,
        max_tokens: int,
        max_rows: int,
        max_logits: int,
        axes: int,
        tables: tuple[int, int, int],
        depth: int,
        has_segments: bool = False,
    ) -> None:
        self._device = device
        self._axes = axes
        self._has_segments = has_segments
        self._tables = tables
        self._dummy_row = tables[1] - 1
        self._dummy_place = self._dummy_row * tables[2]
        capacity = 4 + (2 + axes) * max_tokens + (3 + 2 * tables[0]) * max_rows + 1 + 3 * max_logits
        capacity += len(SECTIONS) * ALIGNED
        assert not (device.shares_host_memory and device.is_async), "a step in flight still reads its host buffer"
        num_buffers = 1 if device.shares_host_memory else depth
        self._host = [device.host_buffer((capacity,), torch.int32) for _ in range(num_buffers)]
        self._on_device = self._host[0] if device.shares_host_memory else device.zeros((capacity,), torch.int32)
        self._views: OrderedDict[tuple[int, int, int], _Views] = OrderedDict()
        self._static: dict[tuple[int, int, int], _Views] = {}
        self._holds: list[tuple[int, ...] | None] = [None] * num_buffers  # sizes of the decode step a buffer holds
        self._turn = 0

    def carries_writes(self, delta: StepDelta, key: ShapeKey) -> bool:
        """Whether the step's inputs have room for all of the delta's block writes."""
        return len(delta.block_writes) <= self._tables[0] * key.rows

    def pack(self, delta: StepDelta, key: ShapeKey, host: HostBatch) -> StepInputs:
        """Write the delta into the next host buffer, queue its copy, and return the device's views."""
        views = self._views_of(key)
        self._turn = (self._turn + 1) % len(self._host)
        section = views.host[self._turn]
        if host.num_decodes == host.num_rows and delta.sample_rows is None:
            self._fill_decode(section, delta, key, host)
        else:
            self._holds[self._turn] = None
            self._fill(section, delta, host)
        self._fill_writes(section, delta, key)
        if not self._device.shares_host_memory:
            self._device.copy(views.device_used, views.host_used[self._turn])
        device = views.device
        return StepInputs(
            key=key,
            host=host,
            token_ids=device["token_ids"],
            positions=device["positions"],
            token_rows=device["token_rows"],
            rows=device["rows"],
            query_starts=device["query_starts"],
            seq_lens=device["seq_lens"],
            logit_index=device["logit_index"],
            logit_rows=device["logit_rows"],
            targets=device["targets"],
            write_places=device["write_places"],
            write_blocks=device["write_blocks"],
            num_valid=device["num_valid"],
        )

    def _fill_decode(self, section: dict[str, Int32], delta: StepDelta, key: ShapeKey, host: HostBatch) -> None:
        """One token a row, every row sampled: where this host buffer holds such a step of the same size already,
        only rows, positions and lengths differ."""
        count = host.num_rows
        shape = (key.tokens, key.rows, key.logits, count)
        if self._holds[self._turn] != shape:
            self._fill(section, delta, host)
            self._holds[self._turn] = shape
            return
        section["rows"][:count] = delta.rows
        section["logit_rows"][:count] = delta.rows
        section["positions"][:, :count] = delta.starts
        section["seq_lens"][:count] = host.seq_lens

    def _fill_writes(self, section: dict[str, Int32], delta: StepDelta, key: ShapeKey) -> None:
        places, blocks, writes = section["write_places"], section["write_blocks"], delta.block_writes
        count = writes.shape[0] if self.carries_writes(delta, key) else 0
        if count:
            places[:count] = flat_places(writes, self._tables)
            blocks[:count] = writes[:, 3]
        places[count:] = self._dummy_place
        blocks[count:] = 0

    def _fill(self, section: dict[str, Int32], delta: StepDelta, host: HostBatch) -> None:
        rows, tokens = host.num_rows, host.num_tokens
        starts = np.zeros(rows + 1, dtype=np.int32)
        np.cumsum(delta.num_tokens, out=starts[1:])
        token_rows = np.repeat(np.arange(rows, dtype=np.int32), delta.num_tokens)
        section["num_valid"][:] = (tokens, rows, host.num_logits)
        section["token_ids"][: host.num_decodes] = -1
        section["token_ids"][host.num_decodes : tokens] = delta.token_ids
        section["token_ids"][tokens:] = 0
        section["positions"][:, :tokens] = (
            np.arange(tokens, dtype=np.int32) - starts[token_rows] + delta.starts[token_rows]
        )
        if self._has_segments:
            section["positions"][-1, :tokens] = 0
            if len(delta.token_types):
                section["positions"][-1, host.num_decodes : tokens] = delta.token_types
        section["positions"][:, tokens:] = 0
        section["token_rows"][:tokens] = token_rows
        padded_rows, padded_tokens = len(section["rows"]), len(section["token_ids"])
        section["token_rows"][tokens:] = padded_rows - 1
        section["rows"][:rows] = delta.rows
        section["rows"][rows:] = self._dummy_row
        section["query_starts"][: rows + 1] = starts
        section["query_starts"][rows + 1 :] = tokens
        if padded_rows == padded_tokens and host.max_query == 1:  # padding rows of a decode own one token each
            section["query_starts"][rows + 1 :] = np.arange(rows + 1, padded_rows + 1)
            section["token_rows"][tokens:] = np.arange(rows, padded_rows)
        section["seq_lens"][:rows] = host.seq_lens
        section["seq_lens"][rows:] = 1
        self._fill_logits(section, delta, starts, host)

    def _fill_logits(self, section: dict[str, Int32], delta: StepDelta, starts: Int32, host: HostBatch) -> None:
        index, owner, targets = section["logit_index"], section["logit_rows"], section["targets"]
        index[:], owner[:], targets[:] = 0, self._dummy_row, -1
        if delta.sample_rows is None or delta.sample_of is None:
            index[: host.num_rows] = starts[1:] - 1
            owner[: host.num_rows] = delta.rows
            return
        sampled = len(delta.sample_rows)
        index[:sampled] = starts[1:][delta.sample_of] - 1
        owner[:sampled] = delta.sample_rows
        prompts = slice(sampled, sampled + len(delta.prompt_targets))
        index[prompts] = delta.prompt_targets[:, 0]
        targets[prompts] = delta.prompt_targets[:, 1]

    def _views_of(self, key: ShapeKey) -> _Views:
        size = (key.tokens, key.rows, key.logits)
        kept = self._static if key.static else self._views
        views = kept.get(size)
        if views is None:
            views = kept[size] = self._make_views(size)
            if len(self._views) > KEPT_SIZES:
                self._views.popitem(last=False)
        return views

    def _make_views(self, size: tuple[int, int, int]) -> _Views:
        tokens, rows, logits = size
        axes = self._axes
        writes = self._tables[0] * rows
        lengths = (3, tokens, axes * tokens, tokens, rows, rows + 1, rows, logits, logits, logits, writes, writes)
        bounds = [0, *np.cumsum([-(-length // ALIGNED) * ALIGNED for length in lengths]).tolist()]
        used = bounds[-1]

        def split(buffer: Any) -> dict[str, Any]:
            parts = {
                name: buffer[start : start + length]
                for name, start, length in zip(SECTIONS, bounds[:-1], lengths, strict=True)
            }
            parts["positions"] = parts["positions"].reshape(axes, tokens)
            return parts

        return _Views(
            host=[split(buffer.numpy()) for buffer in self._host],
            host_used=[buffer[:used] for buffer in self._host],
            device=split(self._on_device),
            device_used=self._on_device[:used],
        )


def flat_places(writes: Int32, tables: tuple[int, int, int]) -> Int32:
    """Flat indices into block tables of shape `tables` of writes [n, 4] = (group, row, index, block)."""
    places: Int32 = (writes[:, 0] * tables[1] + writes[:, 1]) * tables[2] + writes[:, 2]
    return places
