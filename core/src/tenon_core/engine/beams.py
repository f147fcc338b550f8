"""Beam search: one request's rows as beams that are chosen anew at every step, sharing blocks by fork.

    row    0     1     2
    now    A     B     C       each gives its best next tokens; chosen are Ax, Ay, Bz
    next   Ax    Bz    Ay      a parent's first child stays in its row, C is given up and Ay forks into its row

The choice is that of Transformers' `_beam_search` (greedy, one prompt): a text's score is the sum of its tokens'
log-probabilities over length^length_penalty. A beam's row is never decoding: its next token comes from the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tenon_core.execution.runner import HostLogprobs
from tenon_core.sampling.params import SamplingParams
from tenon_core.state.rows import RowTable

from .kv_memory import KVMemory
from .messages import Finished, FinishReason, TokenLogprobs, sequence_key
from .schedule import Scheduler
from .sequence import Sequence

NOWHERE = -1e9  # the score of beams that are not there yet


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text: its score, its output tokens with their log-probabilities, the token that ended it or -1."""

    score: float
    steps: tuple[tuple[int, float, int], ...]  # (token, log-probability, rank)
    stop_token: int


@dataclass(slots=True, kw_only=True)
class BeamGroup:
    """The beams of one request. ends: tokens that finish one. limit: length at which all do."""

    params: SamplingParams
    request_id: int
    num_prompt: int
    limit: int
    ends: frozenset[int]
    slots: list[Sequence] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    steps: list[tuple[tuple[int, float, int], ...]] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)
    landed: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)  # slot -> its best next tokens

    def __post_init__(self) -> None:
        width = self.params.beam_width
        self.scores = [0.0] + [NOWHERE] * (width - 1)
        self.steps = [()] * width

    @property
    def num_candidates(self) -> int:
        """Tokens wanted of each row: as many as beams, and as many again as may end one."""
        return self.params.beam_width + len(self.ends)

    def lost(self, slot: int) -> None:
        """The row of a beam was given up: it is computed again, and lands again."""
        self.landed.pop(slot, None)

    def choose(self) -> list[tuple[int, tuple[int, float, int], float]] | None:
        """(parent slot, its next token, score) of every beam of the next step; None: the search has ended."""
        width, made = self.params.beam_width, len(self.steps[0]) + 1
        at_limit = self.num_prompt + made >= self.limit
        candidates = [
            (self.scores[slot] + step[1], slot, step) for slot, steps in self.landed.items() for step in steps
        ]
        candidates.sort(key=lambda one: (-one[0], one[1], one[2][2]))
        self.landed = {}
        running: list[tuple[int, tuple[int, float, int], float]] = []
        for place, (score, slot, step) in enumerate(candidates):
            is_end = step[0] in self.ends
            if (is_end or at_limit) and place < width:
                self._finish(score, (*self.steps[slot], step), step[0] if is_end else -1)
            if not is_end and len(running) < width:
                running.append((slot, step, score))
        if at_limit or self._is_over(running[0][2], made):
            return None
        return running

    def _finish(self, score: float, steps: tuple[tuple[int, float, int], ...], stop_token: int) -> None:
        found = Hypothesis(score / len(steps) ** self.params.length_penalty, steps, stop_token)
        self.finished = sorted((*self.finished, found), key=lambda one: -one.score)[: self.params.beam_width]

    def _is_over(self, best: float, made: int) -> bool:
        """Whether no running beam can still be among the best, as `early_stopping` says."""
        params = self.params
        if len(self.finished) < params.beam_width:
            return False
        if params.early_stopping is True:
            return True
        longest = self.limit - self.num_prompt
        length = longest if params.early_stopping == "never" and params.length_penalty > 0 else made
        possible: float = best / length**params.length_penalty
        return possible <= self.finished[-1].score


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
            assert group is not None
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
