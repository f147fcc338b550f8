"""From a schedule to the step delta the runner gets. A steady decode step makes three small arrays."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tenon_core.execution.delta import NO_BLOCKS, NO_COPIES, NO_INTS, StepDelta
from tenon_core.sampling.pooling import PoolingFacts
from tenon_core.state.rows import RowTable
from tenon_platforms.shapes import SamplingMode

from .kv_memory import KVMemory
from .row_params import ModeUnion, row_start, sampling_mode
from .schedule import Chunk, Schedule
from .sequence import Sequence

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True, kw_only=True)
class DeltaBuilder:
    """Builds one delta a step. `modes` follows which sampling modes run."""

    table: RowTable
    memory: KVMemory
    eos_token_ids: Ids[int]
    pooling: PoolingFacts | None = None
    step: int = 0
    modes: ModeUnion = field(default_factory=ModeUnion)
    _mode_of_row: dict[int, SamplingMode] = field(default_factory=dict)
    _ones: Int32 = field(init=False)
    _last_rows: Int32 | None = None
    _last_blocks: int = 0

    def __post_init__(self) -> None:
        self._ones = np.ones(self.table.max_rows, dtype=np.int32)

    def build(self, schedule: Schedule, released: tuple[int, ...]) -> StepDelta:
        """The delta of a schedule; the row table's counters were advanced by the scheduler."""
        table, decodes = self.table, schedule.decodes
        for row in released:
            if (mode := self._mode_of_row.pop(row, None)) is not None:
                self.modes.remove(mode)
        started = tuple(self._start(one) for one in (*schedule.started, *schedule.born))
        writes, copies = self.memory.take_writes(), self.memory.take_copies()
        self.step += 1
        rows, starts, num_tokens = decodes, table.num_computed[decodes] - 1, self._ones[: len(decodes)]
        extra: dict[str, Any] = {}
        if schedule.chunks:
            chunk_rows = np.array([chunk.sequence.row for chunk in schedule.chunks], dtype=np.int32)
            sizes = np.array([chunk.num_tokens for chunk in schedule.chunks], dtype=np.int32)
            firsts = np.array([chunk.start for chunk in schedule.chunks], dtype=np.int32)
            rows, starts = np.concatenate((rows, chunk_rows)), np.concatenate((starts, firsts))
            num_tokens = np.concatenate((num_tokens, sizes))
            fields = self._prefill_fields if self.pooling is None else self._pooling_fields
            extra = fields(schedule, len(decodes))
        return StepDelta(
            step=self.step,
            rows=rows,
            starts=starts,
            num_tokens=num_tokens,
            num_decodes=len(decodes),
            max_blocks=self._most_blocks(rows, is_known=writes is None),
            mode=self.modes.mode,
            block_writes=NO_BLOCKS if writes is None else writes,
            block_copies=NO_COPIES if copies is None else copies,
            started=started,
            released=released,
            **extra,
        )

    def _most_blocks(self, rows: Int32, *, is_known: bool) -> int:
        """Of the rows. is_known: no table has changed since the last step; with the same rows it is the same number."""
        if rows is not self._last_rows or not is_known:
            self._last_rows, self._last_blocks = rows, int(self.table.num_blocks[rows].max())
        return self._last_blocks

    def _start(self, sequence: Sequence) -> Any:
        row = sequence.row
        mode = self._mode_of_row[row] = sampling_mode(sequence)
        self.modes.add(mode)
        return row_start(sequence, self.table.tokens[row, : self.table.num_known[row]], self.eos_token_ids)

    def _prefill_fields(self, schedule: Schedule, num_decodes: int) -> dict[str, Any]:
        table = self.table
        tokens = [
            table.tokens[chunk.sequence.row, chunk.start : chunk.start + chunk.num_tokens] for chunk in schedule.chunks
        ]
        sample_rows, sample_of = schedule.decodes.tolist(), list(range(num_decodes))
        targets: list[Int32] = []
        offset, born = num_decodes, list(schedule.born)
        for index, chunk in enumerate(schedule.chunks, start=num_decodes):
            sequence = chunk.sequence
            if chunk.is_last:
                children = [one.row for one in born if one.request.id == sequence.request.id]
                for row in (sequence.row, *children):
                    sample_rows.append(row)
                    sample_of.append(index)
            if wanted := prompt_targets(chunk):
                positions = np.arange(chunk.start, chunk.start + wanted, dtype=np.int32)
                pairs = np.empty((wanted, 2), dtype=np.int32)
                pairs[:, 0] = positions - chunk.start + offset
                pairs[:, 1] = table.tokens[sequence.row, positions + 1]
                targets.append(pairs)
            offset += chunk.num_tokens
        return {
            "token_ids": np.concatenate(tokens),
            "sample_rows": np.array(sample_rows, dtype=np.int32),
            "sample_of": np.array(sample_of, dtype=np.int32),
            "prompt_targets": np.concatenate(targets) if targets else NO_COPIES,
        }

    def _pooling_fields(self, schedule: Schedule, num_decodes: int) -> dict[str, Any]:
        assert self.pooling is not None and not num_decodes, "a pooling model decodes nothing"
        tokens, types, targets, offset = [], [], [], 0
        for chunk in schedule.chunks:
            work, start, count = chunk.sequence.request.pooling, chunk.start, chunk.num_tokens
            tokens.append(self.table.tokens[chunk.sequence.row, start : start + count])
            begins = work.segment_start if work is not None and work.segment_start else start + count
            types.append((np.arange(start, start + count) >= begins).astype(np.int32))
            wanted = pooled_tokens(chunk, self.pooling)
            pairs = np.empty((len(wanted), 2), dtype=np.int32)
            pairs[:, 0], pairs[:, 1] = wanted + offset, int(work is not None and work.per_token)
            targets.append(pairs)
            offset += count
        return {
            "token_ids": np.concatenate(tokens),
            "token_types": np.concatenate(types) if self.pooling.segments else NO_INTS,
            "sample_rows": NO_INTS,
            "sample_of": NO_INTS,
            "prompt_targets": np.concatenate(targets),
        }


def pooled_tokens(chunk: Chunk, facts: PoolingFacts) -> Int32:
    """Which of a chunk's tokens give a vector: all of them, or the one that stands for its row."""
    work = chunk.sequence.request.pooling
    if work is not None and work.per_token:
        return np.arange(chunk.num_tokens, dtype=np.int32)
    if facts.pooling == "first":
        return np.zeros(int(chunk.start == 0), dtype=np.int32)
    return np.full(int(chunk.is_last), chunk.num_tokens - 1, dtype=np.int32)


def prompt_targets(chunk: Chunk) -> int:
    """How many of a chunk's positions want the log-probability of the next prompt token."""
    sequence = chunk.sequence
    if sequence.params.prompt_logprobs is None or sequence.is_announced:
        return 0
    return max(min(chunk.start + chunk.num_tokens, sequence.num_prompt - 1) - chunk.start, 0)
