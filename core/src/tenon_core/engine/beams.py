"""Beam search: one request's rows as beams that are chosen anew at every step, sharing blocks by fork.

    row    0     1     2
    now    A     B     C       each gives its best next tokens; chosen are Ax, Ay, Bz
    next   Ax    Bz    Ay      a parent's first child stays in its row, C is given up and Ay forks into its row

A beam's row is never decoding: its next token comes from the host, as the end of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tenon_core.execution.results import HostLogprobs
from tenon_core.state.rows import RowTable

from .beam_group import BeamGroup
from .kv_memory import KVMemory
from .messages import Finished, FinishReason, TokenLogprobs, sequence_key
from .schedule import Scheduler
from .sequence import Sequence, SequenceState


@dataclass(slots=True, kw_only=True)
class BeamNews:
    """What ended in a step, as an update tells it."""

    keys: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class BeamSearches:
    """All beam searches of an engine."""

    table: RowTable
    memory: KVMemory
    scheduler: Scheduler

    def land(self, rows: list[tuple[int, int]], logprobs: HostLogprobs, news: BeamNews) -> None:
        """Take in what a step gave of beams' rows, (row, place among the logits) each; go on where all have come."""
        groups: dict[int, BeamGroup] = {}
        for row, place in rows:
            sequence: Sequence = self.table.owners[row]
            group = sequence.beams
            if group is None or sequence.state is not SequenceState.HELD:  # preempted: it is computed, and lands, again
                continue
            count = group.num_candidates
            ids, found = logprobs.top_ids[place, :count].tolist(), logprobs.top[place, :count].tolist()
            group.landed[sequence.sample] = [
                (token, value, rank) for rank, (token, value) in enumerate(zip(ids, found, strict=True), start=1)
            ]
            groups[group.request_id] = group
        for group in groups.values():
            if len(group.landed) == group.params.beam_width:
                self._advance(group, news)

    def _advance(self, group: BeamGroup, news: BeamNews) -> None:
        chosen = group.choose()
        if chosen is None:
            self._end(group, news)
            return
        width = len(chosen)
        place_of: list[tuple[int, tuple[int, float, int], float] | None] = [None] * width
        movers = []
        for beam in chosen:
            if place_of[beam[0]] is None:
                place_of[beam[0]] = beam
            else:
                movers.append(beam)
        free = [slot for slot in range(width) if place_of[slot] is None]
        for slot in free:
            self.memory.release(group.slots[slot].row)
        for slot, beam in zip(free, movers, strict=True):
            self._move_over(group.slots[beam[0]], group.slots[slot])
            place_of[slot] = beam
        steps = list(group.steps)
        for slot, placed in enumerate(place_of):
            assert placed is not None
            parent, step, score = placed
            group.steps[slot] = (*steps[parent], step)
            group.scores[slot] = score
            self.scheduler.extend(group.slots[slot], step[0])

    def _move_over(self, parent: Sequence, child: Sequence) -> None:
        """The child's row becomes a fork of the parent's; where no block is free it is computed anew."""
        table, source, row = self.table, parent.row, child.row
        known = int(table.num_known[source])
        table.tokens[row, :known] = table.tokens[source, :known]
        for counter in (table.num_tokens, table.num_known):
            counter[row] = counter[source]
        if self.memory.allocator.num_free >= self.memory.num_groups:
            self.memory.fork(source, row, before_next=True)
            table.num_computed[row] = table.num_computed[source]
            child.hashes, child.num_published = list(parent.hashes), parent.num_published
        else:
            table.num_computed[row] = 0
            child.hashes, child.num_published = [], 0

    def _end(self, group: BeamGroup, news: BeamNews) -> None:
        for sequence in group.slots:
            self.table.end(sequence.row)
            self.scheduler.end(sequence)
        wants = group.params.logprobs is not None
        for sample, found in enumerate(group.finished[: group.params.n]):
            key = sequence_key(group.request_id, sample)
            for token, value, rank in found.steps:
                if wants:
                    news.logprobs.append((len(news.keys), TokenLogprobs(token, value, rank, (), ())))
                news.keys.append(key)
                news.tokens.append(token)
            reason = FinishReason.LENGTH if found.stop_token < 0 else FinishReason.STOP
            news.finished.append(Finished(key=key, reason=reason, stop_token=found.stop_token))


def beam_rows(table: RowTable, sampled: np.ndarray, keys: np.ndarray) -> list[tuple[int, int]]:
    """(row, place) of sampled logits that are live beams'."""
    alive = table.is_beam[sampled] & (table.keys[sampled] == keys) & (table.limit[sampled] > 0)
    return [(int(sampled[place]), place) for place in np.flatnonzero(alive).tolist()]
