"""Output routing: from a step's result to the row table, the ends of sequences, and one update for all clients.

The common case is a few numpy calls over the batch; Python runs only for sequences that end, fill a block, or asked
for log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tenon_core.execution.delta import StepDelta
from tenon_core.execution.results import HostLogprobs, LaunchedStep, StepResult
from tenon_core.sampling.pooling import PoolingFacts
from tenon_core.state.rows import RowTable

from .beams import BeamNews, BeamSearches, beam_rows
from .deltas import pooled_tokens, prompt_targets
from .ends import EndWatch
from .grammars import Constraint
from .kv_memory import KVMemory
from .messages import Finished, FinishReason, Pooled, PromptInfo, StepUpdate, TokenLogprobs
from .schedule import Schedule, Scheduler
from .sequence import Sequence, SequenceState

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True, kw_only=True)
class Flight:
    """A launched step: what was asked, who was in it, and the handle of its result."""

    delta: StepDelta
    schedule: Schedule
    handle: LaunchedStep
    sampled: Int32  # row of each sampled logit
    keys: npt.NDArray[np.int64]  # sequence key of each of them at launch
    epoch: int  # of the row table, after launch
    constraints: tuple[Constraint, ...] = ()  # of rows that follow a grammar
    is_followed: bool = False  # its tokens were given to their grammars

    @property
    def has_beams(self) -> bool:
        """Whether rows of a beam search were in it."""
        return any(chunk.sequence.beams is not None for chunk in self.schedule.chunks)

    @property
    def rows(self) -> Int32:
        """Every row whose `in_flight` was raised: those scheduled, and samples born in this step."""
        born = [one.row for one in self.schedule.born]
        return np.concatenate((self.delta.rows, np.array(born, dtype=np.int32))) if born else self.delta.rows


@dataclass(slots=True, kw_only=True)
class OutputRouter:
    """Routes results. eos_token_ids end every sequence that does not ignore them."""

    table: RowTable
    memory: KVMemory
    scheduler: Scheduler
    eos_token_ids: tuple[int, ...]
    pooling: PoolingFacts | None = None
    num_generated: int = 0
    beams: BeamSearches = field(init=False)
    _watch: EndWatch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = EndWatch(table=self.table, eos_token_ids=self.eos_token_ids)
        self.beams = BeamSearches(table=self.table, memory=self.memory, scheduler=self.scheduler)

    def route(self, flight: Flight, result: StepResult) -> StepUpdate:
        """Take one landed step in; the update for clients."""
        table = self.table
        self._land(flight)
        sampled, keys, tokens = flight.sampled, flight.keys, result.tokens[: len(flight.sampled), 0]
        beams = beam_rows(table, sampled, keys) if flight.has_beams else []
        index: Int32 | None = None  # of each live token among the sampled ones; None: all are
        if (
            beams or table.epoch != flight.epoch
        ):  # somebody left: a preempted sequence still takes its token, an ended one not
            alive = (table.keys[sampled] == keys) & (table.limit[sampled] > 0) & ~table.is_beam[sampled]
            if not alive.all():
                index = np.flatnonzero(alive).astype(np.int32)
                sampled, keys, tokens = sampled[index], keys[index], tokens[index]
        table.tokens[sampled, table.num_known[sampled]] = tokens
        np.add(table.num_known, table.mask(sampled), out=table.num_known)
        self.num_generated += len(tokens)
        if flight.schedule.chunks and self.memory.prefix_cache.enabled:
            self._publish(flight.schedule)
        logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
        prompts: tuple[PromptInfo, ...] = ()
        if result.logprobs is not None or flight.schedule.chunks:
            prompts = self._prompts(flight, result.logprobs)
        if result.logprobs is not None:
            logprobs = self._logprobs(sampled, tokens, index, result.logprobs)
        finished = self._ends(sampled, tokens) if self._watch.may_end(tokens) else ()
        if beams and result.logprobs is not None:
            news = BeamNews()
            self.beams.land(beams, result.logprobs, news)
            self.num_generated += len(news.keys)
            logprobs = (*logprobs, *((len(keys) + place, one) for place, one in news.logprobs))
            keys = np.concatenate((keys, np.array(news.keys, dtype=np.int64)))
            tokens = np.concatenate((tokens, np.array(news.tokens, dtype=np.int32)))
            finished = (*finished, *news.finished)
        return StepUpdate(
            step=flight.delta.step,
            keys=keys.tobytes(),
            tokens=tokens.tobytes(),
            logprobs=logprobs,
            finished=finished,
            prompts=prompts,
            pooled=() if self.pooling is None else self._pooled(flight, result, self.pooling),
        )

    def _pooled(self, flight: Flight, result: StepResult, facts: PoolingFacts) -> tuple[Pooled, ...]:
        """Take vectors in; those of prompts that are whole now, whose sequences end."""
        assert result.pooled is not None
        found, place = [], 0
        for chunk in flight.schedule.chunks:
            sequence, count = chunk.sequence, len(pooled_tokens(chunk, facts))
            rows, place = result.pooled[place : place + count], place + count
            if not sequence.is_running:
                continue
            if sequence.vectors is None:
                work = sequence.request.pooling
                lines = sequence.num_prompt if work is not None and work.per_token else 1
                sequence.vectors = np.zeros((lines, facts.width), dtype=np.float32)
            if count:
                first = chunk.start if len(sequence.vectors) > 1 else 0
                sequence.vectors[first : first + count] = rows
            if chunk.is_last:
                found.append(Pooled(sequence.key, len(sequence.vectors), sequence.vectors.tobytes()))
                self.end(sequence)
        return tuple(found)

    def land_failed(self, flight: Flight) -> list[Sequence]:
        """Take back a step that failed; returns the sequences that were in it and still run.

        Those that only started with it are among them: the runner may not have heard of them.
        """
        self._land(flight)
        owners = [self.table.owners[row] for row in flight.rows.tolist()]
        found = dict.fromkeys([one for one in owners if one is not None] + list(flight.schedule.started))
        return [one for one in found if one.is_running]

    def _land(self, flight: Flight) -> None:
        in_flight = self.table.in_flight
        np.subtract(in_flight, self.table.mask(flight.rows), out=in_flight)

    def _ends(self, rows: Int32, tokens: Int32) -> tuple[Finished, ...]:
        table = self.table
        ends = table.num_known[rows] >= table.limit[rows]
        if self.eos_token_ids:
            at_eos = tokens == self.eos_token_ids[0]
            for other in self.eos_token_ids[1:]:
                at_eos |= tokens == other
            ends |= at_eos & table.stops_at_eos[rows]
        ends |= table.has_stop_ids[rows]  # candidates: looked at one by one
        if not ends.any():
            return ()
        finished = []
        for place in np.flatnonzero(ends).tolist():
            sequence, token = table.owners[rows[place]], int(tokens[place])
            if (end := self._end_of(sequence, token)) is not None:
                finished.append(end)
                self.end(sequence)
        return tuple(finished)

    def _end_of(self, sequence: Sequence, token: int) -> Finished | None:
        params, row = sequence.params, sequence.row
        has_grammar = params.structured_outputs is not None
        stops_at_eos = not params.ignore_eos or has_grammar
        is_stop = token in params.stop_token_ids or (stops_at_eos and token in self.eos_token_ids)
        is_early = self.table.num_known[row] - sequence.num_prompt < params.min_tokens and not has_grammar
        if is_stop and not is_early:
            return Finished(key=sequence.key, reason=FinishReason.STOP, stop_token=token)
        if self.table.num_known[row] >= self.table.limit[row]:
            return Finished(key=sequence.key, reason=FinishReason.LENGTH)
        return None

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended: its later tokens, if any are in flight, count no more."""
        if sequence.is_running or sequence.state is SequenceState.PREEMPTED:
            self.table.end(sequence.row)
        self.scheduler.end(sequence)

    def _publish(self, schedule: Schedule) -> None:
        """Prompts are findable as soon as they are computed; outputs when their sequence leaves its row."""
        for chunk in schedule.chunks:
            if chunk.sequence.is_running:
                self.memory.publish(chunk.sequence, chunk.start + chunk.num_tokens)

    def _prompts(self, flight: Flight, logprobs: HostLogprobs | None) -> tuple[PromptInfo, ...]:
        infos = []
        place = len(flight.sampled)
        for chunk in flight.schedule.chunks:
            sequence, wanted = chunk.sequence, prompt_targets(chunk)
            if wanted and logprobs is not None:
                count = sequence.params.prompt_logprobs or 0
                del sequence.prompt_logprobs[chunk.start :]  # it left its row in the midst of its prompt: again
                for _ in range(wanted):
                    target = int(flight.delta.prompt_targets[place - len(flight.sampled), 1])
                    sequence.prompt_logprobs.append(token_logprobs(logprobs, place, target, count))
                    place += 1
            if chunk.is_last and not sequence.is_announced:
                sequence.is_announced = True
                asked = sequence.params.prompt_logprobs is not None
                infos.append(
                    PromptInfo(
                        key=sequence.key,
                        num_cached_tokens=max(sequence.num_cached, 0),
                        logprobs=(None, *sequence.prompt_logprobs) if asked else None,
                        queued_seconds=sequence.queued_seconds or 0.0,
                    )
                )
        return tuple(infos)

    def _logprobs(
        self, rows: Int32, tokens: Int32, index: Int32 | None, logprobs: HostLogprobs
    ) -> tuple[tuple[int, TokenLogprobs], ...]:
        found = []
        for place in np.flatnonzero(self.table.wants_logprobs[rows]).tolist():
            count = self.table.owners[rows[place]].params.logprobs or 0
            source = place if index is None else int(index[place])
            found.append((place, token_logprobs(logprobs, source, int(tokens[place]), count)))
        return tuple(found)


def token_logprobs(logprobs: HostLogprobs, place: int, token: int, count: int) -> TokenLogprobs:
    """One position's log-probabilities as the client gets them."""
    return TokenLogprobs(
        token_id=token,
        logprob=float(logprobs.chosen[place]),
        rank=int(logprobs.rank[place]),
        top_ids=tuple(logprobs.top_ids[place, :count].tolist()),
        top_logprobs=tuple(logprobs.top[place, :count].tolist()),
    )
