"""The default scheduler: which rows compute how many tokens in the next step.

One token budget; decodes first, then prompts in chunks, then new requests. It knows rows, blocks and the platform's
schedule limits; it does not know shapes, kernels or clients. A steady decode step costs a few numpy calls.

Admission keeps blocks back for what runs already, so that preemption is rare; when blocks run out all the same, the
last comer gives its blocks up and is computed again later (recompute, never swap).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tenon_core.state.rows import RowTable
from tenon_platforms.shapes import ScheduleLimits

from .kv_memory import KVMemory
from .schedule import Chunk, Int32, Schedule, SchedulerContext
from .sequence import NO_ROW, Sequence, SequenceState

NO_ROWS: Int32 = np.zeros(0, dtype=np.int32)
ADMISSION_HEADROOM = 32  # tokens a running sequence is expected to grow by before the next one ends


@dataclass(slots=True)
class DefaultScheduler:
    """First come, first served within a priority; continuous batching with chunked prefill."""

    context: SchedulerContext
    num_preemptions: int = 0
    _queue: list[tuple[int, int, Sequence]] = field(default_factory=list)
    _prefilling: list[Sequence] = field(default_factory=list)
    _landing: list[Sequence] = field(default_factory=list)  # PREEMPTED or ENDED, with steps in flight
    _decoding: npt.NDArray[np.bool_] = field(init=False)
    _decodes: Int32 = field(default_factory=lambda: NO_ROWS)
    _dirty: bool = False  # `_decodes` is out of date
    _num_left: int = 0  # steps of `_decodes` until one of them is as long as it may be
    _reserved_rows: int = 0  # for samples not yet born
    _released: list[int] = field(default_factory=list)
    _started: list[Sequence] = field(default_factory=list)  # admitted, and no step has told the runner yet
    _decoded_last: bool = False
    _refused: tuple[Sequence, int, int] | None = None  # head of the queue, free blocks and running rows at its refusal
    _num_suspects: int = 0
    _table: RowTable = field(init=False)
    _memory: KVMemory = field(init=False)
    _limits: ScheduleLimits = field(init=False)

    def __post_init__(self) -> None:
        self._table, self._memory = self.context.table, self.context.memory
        self._limits = self.context.limits
        self._decoding = np.zeros(self._table.max_rows, dtype=np.bool_)

    # what the engine says

    def add(self, sequence: Sequence) -> None:
        heapq.heappush(self._queue, (*sequence.rank, sequence))

    def end(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.UNBORN:
            self._end_unborn(sequence)
            return
        if sequence.state is SequenceState.WAITING:
            self._queue = [entry for entry in self._queue if entry[2] is not sequence]
            heapq.heapify(self._queue)
        self._leave(sequence, SequenceState.ENDED)

    def requeue(self, sequence: Sequence) -> None:
        if sequence.is_running:
            self._leave(sequence, SequenceState.PREEMPTED)

    def extend(self, sequence: Sequence, token: int) -> None:
        table, row = self._table, sequence.row
        known = int(table.num_known[row])
        table.tokens[row, known] = token
        table.num_known[row] = table.num_tokens[row] = known + 1
        self._prefilling.append(sequence)
        self._move(sequence, SequenceState.PREFILLING)

    def take_released(self) -> tuple[int, ...]:
        released, self._released = tuple(self._released), []
        return released

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_running(self) -> int:
        return self._table.max_rows - self._table.num_free

    def sequences(self) -> Iterator[Sequence]:
        yield from (entry[2] for entry in self._queue)
        yield from (owner for owner in self._table.owners if owner is not None and owner.is_running)
        yield from (one for one in self._landing if one.state is SequenceState.PREEMPTED)

    # the step

    def schedule(self) -> Schedule | None:
        self.settle()
        if self._num_suspects:
            if self._table.in_flight.any():
                return None  # alone means alone
            if (alone := self._schedule_suspect()) is not None:
                return alone
        wants_prefill = bool(self._prefilling or self._queue)
        decodes = NO_ROWS
        if self._limits.mix or not wants_prefill or not self._decoded_last:
            decodes = self._schedule_decodes()
        prefill_now = wants_prefill and (self._limits.mix or not len(decodes))
        chunks, born = self._schedule_prefills(len(decodes)) if prefill_now else ((), ())
        if not len(decodes) and not chunks and wants_prefill and not self._limits.mix:
            decodes = self._schedule_decodes()  # nothing could be admitted: go on decoding
        self._decoded_last = len(decodes) > 0
        if not len(decodes) and not chunks:
            self._break_tie()
            return None
        return Schedule(decodes=decodes, chunks=chunks, started=self._take_started(), born=born)

    def _take_started(self) -> tuple[Sequence, ...]:
        """Sequences admitted since the last step, whether or not they compute something in it."""
        if not self._started:
            return ()
        started, self._started = tuple(one for one in self._started if one.is_running), []
        return started

    def _break_tie(self) -> None:
        """Prompts and beams that hold all blocks between them and wait for each other: the last comer gives its up."""
        if self._decoding.any() or self._landing or self._table.in_flight.any():
            return
        held = [one for one in self._table.owners if one is not None and one.state is SequenceState.HELD]
        holders = [*self._prefilling, *held]
        if len(holders) > 1 or (held and self._queue):
            self._preempt(max(holders, key=lambda one: one.rank))

    def _schedule_decodes(self) -> Int32:
        table = self._table
        if self._dirty:
            self._decodes, self._dirty = np.flatnonzero(self._decoding).astype(np.int32), False
            self._decodes.flags.writeable = False  # who kept something by this array's identity relies on it
            self._num_left = 0
        rows = self._decodes
        if not len(rows):
            return rows
        unlucky = self._memory.grow_decodes(rows)
        if len(unlucky):
            rows = self._make_room(rows, unlucky)
            if not len(rows):
                return rows
        ones = table.mask(rows)
        for counter in (table.num_computed, table.num_tokens, table.in_flight):
            np.add(counter, ones, out=counter)
        self._num_left -= 1
        if self._num_left <= 0:
            left = table.limit[rows] - table.num_tokens[rows]
            self._num_left = int(left.min()) if rows is self._decodes else 0
            for row in rows[left <= 0].tolist():
                self._move(table.owners[row], SequenceState.LAST_TOKEN)
        return rows

    def _make_room(self, rows: Int32, unlucky: Int32) -> Int32:
        """Preempt from the back until every remaining row has its block, or wait a step for blocks to land."""
        table = self._table
        short = unlucky
        while len(short):
            victim = max((table.owners[row] for row in np.flatnonzero(self._decoding)), key=lambda one: one.rank)
            if self._prefilling:
                victim = max(victim, *self._prefilling, key=lambda one: one.rank)
            landed = table.in_flight[victim.row] == 0
            self._preempt(victim)
            rows = rows[self._decoding[rows]]
            short = short[self._decoding[short]]
            if landed:
                self.settle()
                short = self._memory.grow_decodes(short) if len(short) else short
            else:
                break  # its blocks come free when its step has landed
        return rows[~np.isin(rows, short)] if len(short) else rows

    def _schedule_prefills(self, num_decodes: int) -> tuple[tuple[Chunk, ...], tuple[Sequence, ...]]:
        """Chunks of prompts, and the samples born with them. While suspects wait for room, nobody new comes in."""
        limits = self._limits
        budget = limits.max_tokens - num_decodes
        places = limits.max_rows - num_decodes
        if limits.max_prefills is not None:
            places = min(places, limits.max_prefills)
        chunks: list[Chunk] = []
        born: list[Sequence] = []
        for sequence in [one for one in self._prefilling if not one.is_suspect]:
            if len(chunks) < places and budget > 0 and (chunk := self._next_chunk(sequence, budget)):
                budget -= chunk.num_tokens
                chunks.append(chunk)
                born += self._advance(chunk)
        while len(chunks) < places and budget > 0 and self._queue and not self._num_suspects:
            sequence = self._queue[0][2]
            if not limits.chunking and len(sequence.tokens) > budget:
                break
            if self._is_still_refused(sequence):
                break
            if not self._admit(sequence):
                self._refused = (sequence, self._memory.allocator.num_free, self.num_running)
                break
            heapq.heappop(self._queue)
            admitted = self._next_chunk(sequence, budget)
            if admitted is None:
                break
            budget -= admitted.num_tokens
            chunks.append(admitted)
            born += self._advance(admitted)
        return tuple(chunks), tuple(born)

    def _next_chunk(self, sequence: Sequence, budget: int) -> Chunk | None:
        """The next tokens of a prompt, with blocks for them and for the samples born with the last one, or None."""
        table, row = self._table, sequence.row
        start, end = int(table.num_computed[row]), int(table.num_tokens[row])
        count = min(end - start, budget, self._limits.fixed_chunk or budget)
        is_last = start + count == end
        self._memory.pass_window(row, sequence.num_published if self._memory.prefix_cache.enabled else None)
        forks = len(sequence.siblings) * self._memory.num_groups if is_last else 0
        if not self._memory.grow(row, start + count, spare=forks):
            return None
        return Chunk(sequence=sequence, start=start, num_tokens=count, is_last=is_last)

    def _advance(self, chunk: Chunk) -> list[Sequence]:
        """Move a chunk's sequence on; returns the samples born with it."""
        table, sequence = self._table, chunk.sequence
        row = sequence.row
        table.num_computed[row] += chunk.num_tokens
        table.in_flight[row] += 1
        if not chunk.is_last:
            return []
        self._prefilling.remove(sequence)
        table.num_tokens[row] += 1
        self._start_decoding(sequence)
        siblings, sequence.siblings = sequence.siblings, []
        for sibling in siblings:
            self._bear(sibling, sequence)
        return siblings

    def _bear(self, child: Sequence, parent: Sequence) -> None:
        """A sample begins on the prompt its sibling has just been scheduled to finish."""
        table = self._table
        self._reserved_rows -= 1
        source, row = parent.row, self._occupy(child)
        for counter in (table.num_tokens, table.num_known, table.num_computed):
            counter[row] = counter[source]
        table.tokens[row, : child.num_prompt] = table.tokens[source, : child.num_prompt]
        table.in_flight[row] = 1
        self._memory.fork(source, row)
        child.hashes = list(parent.hashes)
        child.num_published = parent.num_published
        self._start_decoding(child)

    def _start_decoding(self, sequence: Sequence) -> None:
        row = sequence.row
        if sequence.beams is not None:
            self._table.num_tokens[row] = self._table.num_known[row]
            self._move(sequence, SequenceState.HELD)
            return
        full = self._table.num_tokens[row] >= self._table.limit[row]
        self._move(sequence, SequenceState.LAST_TOKEN if full else SequenceState.DECODING)

    # admission

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a row and its cached prefix, if the blocks for all of it are there."""
        table, memory = self._table, self._memory
        rows = 1 + len(sequence.siblings)
        if table.num_free - self._reserved_rows < rows:
            return False
        cached = self._cached_prefix(sequence)
        held = sum(block != 0 for group in cached for block in group)
        num_tokens = len(sequence.tokens)
        wanted = memory.blocks_for(num_tokens + 1) - held + (rows - 1) * memory.num_groups
        reviving = self._reviving(cached)
        if wanted + reviving + self._kept_back() > memory.allocator.num_free:
            return False
        row = self._occupy(sequence)
        self._reserved_rows += rows - 1
        table.tokens[row, :num_tokens] = sequence.tokens
        table.num_tokens[row] = table.num_known[row] = num_tokens
        memory.start(row, cached)
        num_cached = len(cached[0]) * memory.block_size if cached else 0
        table.num_computed[row] = num_cached
        sequence.num_published = num_cached // memory.block_size
        if sequence.num_cached < 0:
            sequence.num_cached = num_cached
            memory.prefix_cache.count(num_tokens, num_cached)
        self._prefilling.append(sequence)
        self._started = [*(one for one in self._started if one is not sequence), sequence]
        self._move(sequence, SequenceState.PREFILLING)
        return True

    def _is_still_refused(self, sequence: Sequence) -> bool:
        """Whether the head of the queue was refused before and nothing has become free since: do not ask again."""
        if self._refused is None or self._refused[0] is not sequence:
            return False
        return self._memory.allocator.num_free <= self._refused[1] and self.num_running >= self._refused[2]

    def _occupy(self, sequence: Sequence) -> int:
        """A row with what the table must know of the sequence to see it end."""
        table, params = self._table, sequence.params
        row = sequence.row = table.take(sequence, sequence.key)
        sequence.is_tainted = False
        table.num_prompt[row] = sequence.num_prompt
        table.limit[row] = sequence.limit
        table.stops_at_eos[row] = not params.ignore_eos or params.structured_outputs is not None
        table.has_stop_ids[row] = bool(params.stop_token_ids)
        table.wants_logprobs[row] = params.logprobs is not None
        table.is_beam[row] = sequence.beams is not None
        table.has_grammar[row] = params.needs_mask
        return row

    def _cached_prefix(self, sequence: Sequence) -> list[list[int]]:
        cache = self._memory.prefix_cache
        if not cache.enabled or sequence.needs_every_position:
            return [[] for _ in range(self._memory.num_groups)]  # every prompt position must be computed
        cache.hashes(sequence.root, sequence.tokens, sequence.hashes)
        return cache.lookup(sequence.hashes, len(sequence.tokens))

    def _reviving(self, cached: list[list[int]]) -> int:
        """Cached blocks that leave the free list when they are shared."""
        allocator = self._memory.allocator
        before = allocator.num_free
        for blocks in cached:
            allocator.share(blocks)
        revived = before - allocator.num_free
        for blocks in cached:
            allocator.release(reversed(blocks))
        return revived

    def _kept_back(self) -> int:
        """Blocks that running sequences are expected to need soon; 0 where nothing runs."""
        kept = sum(
            self._memory.blocks_for(len(one.tokens)) - int(self._table.num_blocks[one.row]) * self._memory.num_groups
            for one in self._prefilling
        )
        rows = np.flatnonzero(self._decoding).astype(np.int32)
        return max(kept, 0) + (self._memory.growth_of(rows, ADMISSION_HEADROOM) if len(rows) else 0)

    # leaving

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._leave(sequence, SequenceState.PREEMPTED)

    def _leave(self, sequence: Sequence, state: SequenceState) -> None:
        had_row = sequence.row != NO_ROW and sequence.state is not SequenceState.ENDED
        was_preempted = sequence.state is SequenceState.PREEMPTED
        if sequence.state is SequenceState.PREFILLING:
            self._prefilling.remove(sequence)
        if sequence.beams is not None:
            sequence.beams.lost(sequence.sample)
        if sequence.is_suspect and state is SequenceState.ENDED:
            self.clear_suspect(sequence)
        if sequence.siblings and state is SequenceState.ENDED:
            self._reserved_rows -= len(sequence.siblings) if had_row else 0
            sequence.siblings = self._hand_over(sequence)
        self._move(sequence, state)
        if had_row and not was_preempted:
            self._landing.append(sequence)

    def _hand_over(self, elder: Sequence) -> list[Sequence]:
        """The elder ends before its siblings were born: the next one computes the prompt for the others."""
        heir, *others = elder.siblings
        heir.siblings, heir.state = others, SequenceState.WAITING
        self.add(heir)
        return []

    def _end_unborn(self, sequence: Sequence) -> None:
        """Its elder sibling computes the prompt for one sample less."""
        elders = [*(entry[2] for entry in self._queue), *self._prefilling, *self._landing]
        for elder in elders:
            if sequence in elder.siblings:
                elder.siblings.remove(sequence)
                self._reserved_rows -= elder.row != NO_ROW
        sequence.state = SequenceState.ENDED

    def settle(self) -> None:
        """Also queues the preempted again."""
        if not self._landing:
            return
        table, flying = self._table, []
        for sequence in self._landing:
            row = sequence.row
            if table.in_flight[row]:
                flying.append(sequence)
                continue
            if sequence.state is SequenceState.PREEMPTED:
                sequence.tokens = table.tokens[row, : table.num_known[row]].copy()
                self._reserved_rows -= len(sequence.siblings)
            if self._memory.prefix_cache.enabled and not sequence.is_tainted:
                self._memory.publish(sequence, min(int(table.num_computed[row]), int(table.num_known[row])))
            self._memory.release(row)
            table.give_back(row)
            self._released.append(row)
            sequence.row = NO_ROW
            if sequence.state is SequenceState.PREEMPTED:
                sequence.state = SequenceState.WAITING
                self.add(sequence)
        self._landing = flying

    def _move(self, sequence: Sequence, state: SequenceState) -> None:
        sequence.state = state
        if sequence.row != NO_ROW:
            decoding = state is SequenceState.DECODING
            if self._decoding[sequence.row] != decoding:
                self._decoding[sequence.row] = decoding
                self._dirty = True

    # after a failed step

    def suspect(self, sequence: Sequence) -> None:
        """It was in a step that failed: run it alone, from its known tokens, until a step of it succeeds."""
        if not sequence.is_suspect:
            sequence.is_suspect = True
            self._num_suspects += 1
        self.requeue(sequence)

    def clear_suspect(self, sequence: Sequence) -> None:
        """A step of it alone succeeded, or it has ended."""
        if sequence.is_suspect:
            sequence.is_suspect = False
            self._num_suspects -= 1

    def _schedule_suspect(self) -> Schedule | None:
        """The next step of one suspect, or None where there is no room for it: then the others go on until there is."""
        running = [one for one in self._prefilling if one.is_suspect]
        if not running:
            waiting = min((entry for entry in self._queue if entry[2].is_suspect), default=None)
            if waiting is None or not self._admit(waiting[2]):
                return None
            self._queue.remove(waiting)
            heapq.heapify(self._queue)
            running = [waiting[2]]
        chunk = self._next_chunk(running[0], self._limits.max_tokens)
        if chunk is None:
            return None
        born = self._advance(chunk)
        return Schedule(decodes=NO_ROWS, chunks=(chunk,), started=self._take_started(), born=tuple(born))
