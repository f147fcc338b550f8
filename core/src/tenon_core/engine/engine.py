"""The engine: one loop over schedule, launch and route, and the requests it holds.

    step N    schedule -> launch ----------------------> (device runs N)
    step N+1              schedule -> launch -> route N   (device runs N+1)

With a device that queues work, `depth` steps are in flight: the host prepares the next one while the device runs, and
a step's tokens are taken in one step late. A synchronous device has depth 0. The engine knows no protocol and no
device; a step that fails ends only the request that makes it fail.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tenon_core.execution.executor import Executor
from tenon_core.observability.metric_names import TOKENS_OF_A_STEP
from tenon_core.sampling.validate import ModelFacts, beam_ends, validate_pooling, validate_request
from tenon_core.state.rows import RowTable
from tenon_platforms.device import Device, Fault
from tenon_platforms.errors import CapacityError, DeviceError, RequestError
from tenon_platforms.pools import Pool

from .beam_group import BeamGroup
from .deltas import DeltaBuilder
from .grammars import Grammars
from .kv_memory import KVMemory
from .messages import EngineStats, Finished, FinishReason, GenerateRequest, KernelUse, Pooled, StepUpdate, split_key
from .outputs import Flight, OutputRouter
from .prefix_cache import root_hash
from .ranks import RankLostError
from .schedule import Schedule, Scheduler
from .sequence import Sequence, SequenceState
from .sleep import Sleep

LOG = logging.getLogger(__name__)
MAX_POOLED_BYTES = 16 * 2**20  # of vectors in one update; a message has its greatest size
STATS_EVERY = 16  # steps between two statistics in updates
COMPILE_PATIENCE_S = 0.005  # for which an idle loop waits for a grammar before it looks at its messages again


@dataclass(slots=True, kw_only=True)
class Engine:
    """One model being served. Made by `engine.start.start_engine`; not thread-safe: one thread calls it."""

    facts: ModelFacts
    table: RowTable
    memory: KVMemory
    scheduler: Scheduler
    executor: Executor
    deltas: DeltaBuilder
    outputs: OutputRouter
    grammars: Grammars
    sleeping: Sleep
    device: Device
    depth: int
    max_waiting: int
    token_seconds: float = 0.0  # of a step with one token, measured at start; among others a token costs less
    on_step: Callable[[int], None] = lambda num_tokens: None  # tokens in flight, before the host may wait for them
    kernels: tuple[KernelUse, ...] = ()  # what was chosen at the start, to be told
    _flights: deque[Flight] = field(default_factory=deque)
    _landed: deque[StepUpdate] = field(default_factory=deque)  # before it fell asleep, to be told
    _requests: dict[int, list[Sequence]] = field(default_factory=dict)
    _ended: list[Finished] = field(default_factory=list)  # to be told with the next update
    _pooled: deque[Pooled] = field(default_factory=deque)  # to be told as messages have room for them
    _num_arrived: int = 0
    _num_prompt_tokens: int = 0
    _num_scheduled_tokens: int = 0
    _steps_by_size: list[int] = field(default_factory=lambda: [0] * (len(TOKENS_OF_A_STEP) + 1))
    _compiles_at_ready: int = 0
    _is_shut: bool = False

    # requests

    @property
    def request_ids(self) -> tuple[int, ...]:
        """Of the requests that are here."""
        return tuple(self._requests)

    @property
    def _num_waiting(self) -> int:
        return self.scheduler.num_waiting + self.grammars.num_compiling

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises `RequestError` where it is invalid, `CapacityError` where the queue is full."""
        prompt = request.prompt_token_ids
        if request.pooling is None:
            limit = validate_request(prompt, request.params, self.facts)
        else:
            limit = validate_pooling(prompt, request.pooling, self.facts)
        if request.adapter:
            raise RequestError(f"adapter {request.adapter!r} is not loaded: this engine has none", param="model")
        if request.id in self._requests:
            raise CapacityError(f"request id {request.id} is already in use")
        if self._num_waiting >= self.max_waiting:
            self._add_compiled()  # no step does while it sleeps, and those that gave up must hold no place
            if (num_waiting := self._num_waiting) >= self.max_waiting:
                raise CapacityError(
                    f"{num_waiting} requests are waiting, the most that --max-waiting allows",
                    remedy="try again later",
                )
        self._check_samples(request)
        root = root_hash(request.cache_salt, request.adapter)
        beams, arrived = self._beams_of(request, limit), time.monotonic()
        samples = [
            Sequence(
                request=request,
                sample=index,
                order=self._num_arrived + index,
                limit=limit,
                tokens=prompt,
                num_prompt=len(prompt),
                root=root,
                arrived=arrived,
                state=SequenceState.UNBORN if index else SequenceState.WAITING,
                beams=beams,
                is_announced=beams is not None and index > 0,  # the first beam's prompt speaks for all
            )
            for index in range(request.params.num_rows)
        ]
        if beams is not None:
            beams.slots = samples
        if not request.params.needs_mask or self.grammars.begin(samples):
            self._add(samples)
        self._num_arrived += len(samples)
        self._num_prompt_tokens += len(prompt)
        self._requests[request.id] = samples

    def _beams_of(self, request: GenerateRequest, limit: int) -> BeamGroup | None:
        """The beam search that a request asks for. Raises `RequestError` where its beams cannot all be held."""
        params = request.params
        if not params.beam_width:
            return None
        wanted = self.memory.blocks_for(limit) * params.beam_width
        if wanted > self.memory.allocator.num_blocks - 1:
            raise RequestError(
                f"beam_width is {params.beam_width}: its beams may need {wanted} KV blocks, the pool has"
                f" {self.memory.allocator.num_blocks - 1}: lower it or max_tokens",
                param="beam_width",
            )
        return BeamGroup(
            params=params,
            request_id=request.id,
            num_prompt=len(request.prompt_token_ids),
            limit=limit,
            ends=frozenset(beam_ends(params, self.facts)),
        )

    def _add(self, samples: list[Sequence]) -> None:
        """Hand a request over to the scheduler: its first sample computes the prompt for all."""
        samples[0].siblings = samples[1:]
        samples[0].state = SequenceState.WAITING
        self.scheduler.add(samples[0])

    def _add_compiled(self, *, patience: float = 0.0) -> None:
        """Requests whose grammar is compiled may run; those whose grammar is none end, those that ended are gone."""
        for samples, error in self.grammars.take_compiled(patience=patience):
            if error is None:
                if samples:
                    self._add(samples)
                continue
            for sequence in samples:
                self._refuse(sequence, error)

    def _check_samples(self, request: GenerateRequest) -> None:
        """Samples are born together: the prompt's blocks and one of each sample's own must fit at once."""
        memory, extra = self.memory, request.params.num_rows - 1
        wanted = memory.blocks_for(len(request.prompt_token_ids) + 1) + extra * memory.num_groups
        if wanted > memory.allocator.num_blocks - 1:
            raise RequestError(
                f"n is {request.params.n}: its prompt and samples need {wanted} KV blocks at once, the pool has"
                f" {memory.allocator.num_blocks - 1}: lower n or give the KV cache more memory",
                param="n",
            )

    def abort(self, ids: Iterable[int] = (), keys: Iterable[int] = ()) -> None:
        """End requests, or single samples by key, now. Unknown ones are ignored: they may just have ended."""
        for request_id in ids:
            for sequence in list(self._requests.get(request_id, ())):
                self._finish(sequence, FinishReason.ABORT)
        for key in keys:
            request_id, sample = split_key(key)
            samples = list(self._requests.get(request_id, ()))
            for sequence in samples:
                if sequence.sample == sample and sequence.beams is None:  # beams are one search, ended as a whole
                    self._finish(sequence, FinishReason.ABORT)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        self.memory.allocator.forget_all()

    def sleep(self, pools: Iterable[Pool]) -> int:
        """Let the steps in flight land and give pools back, as `Sleep.begin`; nothing runs until all are awake."""
        while self._flights:
            update = self._land(self._flights.popleft())
            if update is not None:
                self._landed.append(update)
        return self.sleeping.begin(tuple(pools))

    def wake(self, pools: Iterable[Pool]) -> None:
        """Bring pools back. As `Sleep.end`."""
        self.sleeping.end(tuple(pools))

    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        can_run = self._requests or self._flights
        return bool((can_run and not self.sleeping.asleep) or self._ended or self._pooled or self._landed)

    # the loop

    def loop(self) -> AbstractContextManager[Any]:
        """Entered around many steps by the thread that calls them: what each step would enter is entered once."""
        return self.device.inference_context()

    def step(self) -> StepUpdate | None:
        """One iteration: schedule and launch the next step, then take in the oldest one that is due."""
        if self._landed or self.sleeping.asleep:
            return self._told(self._landed.popleft() if self._landed else None)
        if self.grammars.num_compiling:
            self._add_compiled()
        schedule = self.scheduler.schedule()
        due = [flight.schedule for flight in self._flights]
        self.on_step(sum(one.num_tokens for one in (due if schedule is None else (*due, schedule))))
        if schedule is not None:
            self._launch(schedule)
        elif self.grammars.num_compiling and not self._flights:
            self._add_compiled(patience=COMPILE_PATIENCE_S)  # there is nothing else to do
        if self._flights and (schedule is None or len(self._flights) > self.depth):
            return self._told(self._land(self._flights.popleft()))
        return self._told(None)

    def _count(self, schedule: Schedule) -> None:
        """A step for the operator's view, and how long those that start with it have waited."""
        num_tokens = schedule.num_tokens
        self._num_scheduled_tokens += num_tokens
        self._steps_by_size[bisect_left(TOKENS_OF_A_STEP, num_tokens)] += 1
        for sequence in schedule.started:
            if sequence.queued_seconds is None:
                sequence.queued_seconds = time.monotonic() - sequence.arrived

    def _launch(self, schedule: Schedule) -> None:
        self._count(schedule)
        delta = self.deltas.build(schedule, self.scheduler.take_released())
        sampled = delta.rows if delta.sample_rows is None else delta.sample_rows
        constraints = self.grammars.constraints(sampled) if delta.mode.grammar else ()
        masks = self.grammars.masks(self._flights, constraints, len(sampled))
        flight = Flight(
            delta=delta,
            schedule=schedule,
            handle=self.executor.launch(delta, masks),
            sampled=sampled,
            keys=self.table.keys[sampled],
            epoch=self.table.epoch,
            constraints=constraints,
        )
        self._flights.append(flight)

    def _land(self, flight: Flight) -> StepUpdate | None:
        try:
            result = flight.handle.result()
            self.grammars.follow(flight)
        except Exception as error:  # noqa: BLE001 - classified by the device; re-raised unless a request's fault
            return self._recover(flight, error)
        update = self.outputs.route(flight, result)
        for chunk in flight.schedule.chunks:
            if chunk.sequence.is_suspect:
                self.scheduler.clear_suspect(chunk.sequence)
        for finished in update.finished:
            self._forget_ended(finished.key)
        for pooled in update.pooled:
            self._forget(pooled.key)
        self._pooled.extend(update.pooled)
        for key, why in self.grammars.take_broken():
            self._break(key, why)
        return update

    def _break(self, key: int, error: RequestError) -> None:
        """A sequence whose grammar allows nothing that could be chosen ends, unless it has ended already."""
        request_id, sample = split_key(key)
        for sequence in [one for one in self._requests.get(request_id, ()) if one.sample == sample]:
            self._refuse(sequence, error)

    def _refuse(self, sequence: Sequence, error: RequestError) -> None:
        """End a sequence for what its request asked."""
        kind, param = RequestError.__name__, error.param or ""
        self._finish(sequence, FinishReason.ERROR, error.message, kind=kind, param=param)

    def _told(self, update: StepUpdate | None) -> StepUpdate | None:
        """The update with ends that came from elsewhere (aborts, errors) and, now and then, statistics."""
        pooled = self._take_pooled() if self._pooled else ()
        ended = (*self._ended, *(Finished(key=one.key, reason=FinishReason.STOP) for one in pooled))
        self._ended = []
        if update is None:
            if not ended:
                return None
            update = StepUpdate(step=self.deltas.step, keys=b"", tokens=b"")
        wants_stats = update.step % STATS_EVERY == 0 or not self._requests
        if not ended and not wants_stats:
            return update
        return StepUpdate(
            step=update.step,
            keys=update.keys,
            tokens=update.tokens,
            logprobs=update.logprobs,
            finished=update.finished + ended,
            prompts=update.prompts,
            stats=self.stats() if wants_stats else None,
            pooled=pooled,
        )

    def _take_pooled(self) -> tuple[Pooled, ...]:
        """Vectors that fit into one message."""
        taken: list[Pooled] = []
        room = MAX_POOLED_BYTES
        while self._pooled and (not taken or len(self._pooled[0].data) <= room):
            taken.append(self._pooled.popleft())
            room -= len(taken[-1].data)
        return tuple(taken)

    # ends and failures

    def _finish(
        self, sequence: Sequence, reason: FinishReason, message: str = "", *, kind: str = "", param: str = ""
    ) -> None:
        self._ended.append(Finished(key=sequence.key, reason=reason, message=message, kind=kind, param=param))
        if self.grammars.drop_compiling(sequence):
            pass  # the scheduler has not heard of it
        elif sequence.state is SequenceState.UNBORN:
            self.scheduler.end(sequence)
        else:
            self.outputs.end(sequence)
        self._forget(sequence.key)

    def _forget_ended(self, key: int) -> None:
        """A sequence ended by itself; with the first text of a beam search, all of its beams have."""
        request_id, _ = split_key(key)
        samples = self._requests.get(request_id, ())
        if samples and samples[0].beams is not None:
            del self._requests[request_id]
        elif samples:
            self._forget(key)

    def _forget(self, key: int) -> None:
        self.grammars.forget(key)
        request_id, sample = split_key(key)
        samples = [one for one in self._requests[request_id] if one.sample != sample]
        if samples:
            self._requests[request_id] = samples
        else:
            del self._requests[request_id]

    def _recover(self, flight: Flight, error: Exception) -> StepUpdate | None:
        """A step failed. Its sequences are computed again one at a time; the one that fails alone is ended."""
        if isinstance(error, RankLostError):
            raise error  # the ranks are out of step, and none can be computed again
        fault = self.device.classify_fault(error)
        LOG.error("step %d failed (%s)", flight.delta.step, fault.value, exc_info=error)
        if fault is Fault.LOST:
            raise DeviceError(f"the device failed: {error}", remedy="restart the server") from error
        landed = [flight, *self._flights]  # later steps built on this one
        self._flights.clear()
        for later in landed[1:]:
            later.handle.discard()
        sequences = {id(one): one for each in landed for one in self.outputs.land_failed(each)}
        alone = len(sequences) == 1
        for sequence in sequences.values():
            sequence.is_tainted = True
            if alone and (sequence.is_suspect or fault is Fault.REQUEST):
                self._finish(sequence, FinishReason.ERROR, f"the step failed: {type(error).__name__}: {error}")
            else:
                self.scheduler.suspect(sequence)
        return None

    # the operator's view

    def stats(self) -> EngineStats:
        """Counters and gauges as of now."""
        self._add_compiled()
        self.scheduler.settle()
        allocator, cache = self.memory.allocator, self.memory.prefix_cache
        return EngineStats(
            num_running=self.scheduler.num_running,
            num_waiting=self._num_waiting,
            num_blocks=allocator.num_blocks - 1,
            num_free_blocks=allocator.num_free,
            num_steps=self.deltas.step,
            num_preemptions=self.scheduler.num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self.outputs.num_generated,
            num_prefix_queries=cache.num_queries,
            num_prefix_hits=cache.num_hits,
            num_compiles_after_ready=self.executor.num_compiles - self._compiles_at_ready,
            num_scheduled_tokens=self._num_scheduled_tokens,
            num_steps_by_size=tuple(self._steps_by_size),
        )

    def mark_ready(self) -> None:
        """From now on compilations count as late."""
        self._compiles_at_ready = self.executor.num_compiles

    def check_integrity(self) -> None:
        """Rows and blocks add up; call it when idle and after every test."""
        if not self._requests and not self._flights:
            self.scheduler.settle()
            assert self.memory.allocator.num_free == self.memory.allocator.num_blocks - 1, "KV blocks leaked"
            assert self.table.num_free == self.table.max_rows, "rows leaked"
        self.table.check_integrity()
        self.memory.check_integrity()

    def shutdown(self) -> None:
        """Give the device back. May be called twice."""
        if not self._is_shut:
            self._is_shut = True
            self._flights.clear()
            self.grammars.close()
            self.executor.shutdown()
