"""`Generation`: from prompts and parameters to outputs, over any engine link. Both faces use it.

It makes ids, fills in what a request left open, validates, and turns each `StepUpdate` into samples' news: one numpy
split a step, then work for what changed. It knows no protocol and does not wait: `LLM` steps the engine and calls
`take`; the server calls `take` as updates arrive, and requests tell their watchers.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tenon_core.engine.clients import first_id
from tenon_core.engine.messages import (
    NO_TOKENS,
    SAMPLE_BITS,
    Finished,
    GenerateRequest,
    PromptInfo,
    StepUpdate,
    sequence_key,
)
from tenon_core.observability.request_end import RequestEnd
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.pooling import Pooling, PoolingParams, task_of
from tenon_core.sampling.validate import ModelFacts, validate_pooling, validate_request
from tenon_platforms.errors import CapacityError, DeviceError, RequestError, TenonError

from .detokenizer import TokenBytes
from .link import EngineLink
from .outputs import CompletionOutput, RequestMetrics, RequestOutput
from .samples import Sample, readable

MAX_SALT = 256


class Observer(Protocol):
    """Who measures requests."""

    def first_token(self, seconds: float) -> None: ...
    def next_token(self, seconds: float, count: int = 1) -> None: ...
    def ended(self, reason: str, end: RequestEnd) -> None: ...


@dataclass(slots=True, kw_only=True)
class ActiveRequest:
    """A request that runs. on_news is called (with no argument) when there is something new to take."""

    id: int
    output: RequestOutput
    samples: list[Sample]
    metrics: RequestMetrics
    on_news: Callable[[], None] | None = None
    error: TenonError | None = None
    num_left: int = 0
    vectors: npt.NDArray[np.float32] | None = None  # [rows, width] of a pooling request that has ended
    is_per_token: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.error is not None or self.num_left == 0


@dataclass(slots=True, kw_only=True)
class Generation:
    """All requests of one front end. vocabulary: None where no text is wanted. seed: the engine configuration's."""

    link: EngineLink
    vocabulary: TokenBytes | None
    seed: int = 0
    observer: Observer | None = None
    client: int = 0  # this front end's number among those of one engine
    _ids: Iterator[int] = field(init=False)
    _requests: dict[int, ActiveRequest] = field(default_factory=dict)
    _samples: dict[int, Sample] = field(default_factory=dict)
    _lost: TenonError | None = None  # why the engine is gone

    def __post_init__(self) -> None:
        self._ids = itertools.count(first_id(self.client))

    @property
    def num_active(self) -> int:
        """Requests that run."""
        return len(self._requests)

    def start(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        request_id: str | None = None,
        cache_salt: str = "",
        priority: int = 0,
        on_news: Callable[[], None] | None = None,
        is_watched: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> ActiveRequest:
        """Validate and submit. is_watched: text is wanted as it comes. shown_ids: special tokens that have text.

        Raises `RequestError`, `CapacityError`, and what `fail_all` was given.
        """
        self._check_lost()
        facts = self.link.facts
        filled, prompt_bytes = self._filled(prompt_token_ids, params, facts)
        check_label("cache_salt", cache_salt)
        identity: int = next(self._ids)
        filled = filled if filled.seed is not None else msgspec.structs.replace(filled, seed=self._seed_of(identity))
        request = self._make(identity, prompt_token_ids, filled, prompt, request_id, is_watched, shown_ids)
        request.on_news = on_news
        self.link.submit(
            GenerateRequest(id=identity, prompt=prompt_bytes, params=filled, cache_salt=cache_salt, priority=priority)
        )
        self._requests[identity] = request
        self._samples.update({sample.key: sample for sample in request.samples})
        return request

    def start_pooling(
        self,
        prompt_token_ids: Sequence[int],
        params: PoolingParams,
        *,
        segment_start: int = 0,
        request_id: str | None = None,
        cache_salt: str = "",
        priority: int = 0,
        on_news: Callable[[], None] | None = None,
    ) -> ActiveRequest:
        """Validate and submit a request for vectors; `ActiveRequest.vectors` holds them raw when it has ended.

        Raises `RequestError`, `CapacityError`, and what `fail_all` was given.
        """
        self._check_lost()
        facts = self.link.facts
        per_token = facts.pooling is not None and task_of(params, facts.pooling).startswith("token_")
        pooling = Pooling(per_token=per_token, segment_start=segment_start)
        validate_pooling(prompt_token_ids, pooling, facts)
        check_label("cache_salt", cache_salt)
        identity: int = next(self._ids)
        request = self._make(identity, prompt_token_ids, NO_TOKENS, None, request_id, False, frozenset())
        request.on_news, request.is_per_token = on_news, per_token
        self.link.submit(
            GenerateRequest(
                id=identity,
                prompt=np.asarray(prompt_token_ids, dtype="<i4").tobytes(),
                params=NO_TOKENS,
                cache_salt=cache_salt,
                priority=priority,
                pooling=pooling,
            )
        )
        self._requests[identity] = request
        self._samples.update({sample.key: sample for sample in request.samples})
        return request

    def _check_lost(self) -> None:
        """A request that nobody hears would be waited for without end."""
        if self._lost is not None:
            raise self._lost.with_traceback(None)

    def _filled(self, ids: Sequence[int], params: SamplingParams, facts: ModelFacts) -> tuple[SamplingParams, bytes]:
        """(parameters with max_tokens filled in, the prompt's bytes), both checked."""
        if params.max_tokens is None:
            room = min(facts.max_model_len, facts.max_resident_tokens or facts.max_model_len) - len(ids)
            if params.min_tokens > max(room, 1):
                raise RequestError(f"min_tokens is {params.min_tokens}: only {room} tokens fit", param="min_tokens")
            params = msgspec.structs.replace(params, max_tokens=max(room, 1))
        validate_request(ids, params, facts)
        return params, np.asarray(ids, dtype="<i4").tobytes()

    def _seed_of(self, identity: int) -> int:
        """Requests without a seed draw from one stream that the engine's seed begins."""
        digest = hashlib.blake2b(f"{self.seed}/{identity}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _make(
        self,
        identity: int,
        ids: Sequence[int],
        params: SamplingParams,
        prompt: str | None,
        request_id: str | None,
        is_watched: bool,
        shown_ids: frozenset[int],
    ) -> ActiveRequest:
        metrics = RequestMetrics(arrival_time=time.monotonic())
        samples = [
            Sample(
                key=sequence_key(identity, index),
                params=params,
                output=CompletionOutput(index=index),
                vocabulary=self.vocabulary,
                is_watched=is_watched,
                prompt_token_ids=ids,
                shown_ids=shown_ids,
            )
            for index in range(params.n)
        ]
        output = RequestOutput(
            request_id=request_id or str(identity),
            prompt=prompt,
            prompt_token_ids=list(ids),
            outputs=[sample.output for sample in samples],
            metrics=metrics,
        )
        return ActiveRequest(id=identity, output=output, samples=samples, metrics=metrics, num_left=params.n)

    # what the engine says

    def take(self, update: StepUpdate) -> list[ActiveRequest]:
        """Take one update in; the requests with news, whose watchers were told."""
        now = time.monotonic()
        touched: dict[int, ActiveRequest] = {}
        for info in update.prompts:
            self._take_prompt(info, touched)
        ends = {end.key: end for end in update.finished}
        for pooled in update.pooled:
            if (request := self._requests.get(pooled.key >> SAMPLE_BITS)) is not None:
                request.vectors = np.frombuffer(pooled.data, dtype="<f4").reshape(pooled.num_rows, -1)
        stopped = self._take_tokens(update, ends, touched, now) if update.keys else []
        for end in update.finished:
            sample = self._samples.get(end.key)
            if sample is not None:
                request = self._requests[end.key >> SAMPLE_BITS]
                touched[request.id] = request
                self._end(request, sample, end, now)
        if stopped:
            self.link.abort(keys=stopped)
        for request in touched.values():
            if request.on_news is not None:
                request.on_news()
        return list(touched.values())

    def _take_tokens(
        self, update: StepUpdate, ends: dict[int, Finished], touched: dict[int, ActiveRequest], now: float
    ) -> list[int]:
        """Give every token to its sample; keys of samples that a stop string ended."""
        keys = np.frombuffer(update.keys, dtype="<i8").tolist()
        tokens = np.frombuffer(update.tokens, dtype="<i4").tolist()
        logprobs = dict(update.logprobs)
        stopped = []
        for place, (key, token) in enumerate(zip(keys, tokens, strict=True)):
            sample = self._samples.get(key)
            if sample is None:  # ended here; the engine had this token in flight
                continue
            request = self._requests[key >> SAMPLE_BITS]
            touched[request.id] = request
            self._clock(request, sample, now)
            end = ends.get(key)
            is_stop_token = end is not None and end.stop_token == token
            if sample.add(token, logprobs.get(place), is_stop_token=is_stop_token):
                stopped.append(key)
                self._leave(request, sample, now)
        return stopped

    def _clock(self, request: ActiveRequest, sample: Sample, now: float) -> None:
        metrics = request.metrics
        if metrics.first_token_time is None:
            metrics.first_token_time = now
            if self.observer is not None:
                self.observer.first_token(now - metrics.arrival_time)
        elif self.observer is not None and metrics.last_token_time is not None and sample.output.index == 0:
            self.observer.next_token(now - metrics.last_token_time)
        if sample.output.index == 0:
            metrics.last_token_time = now

    def _take_prompt(self, info: PromptInfo, touched: dict[int, ActiveRequest]) -> None:
        request = self._requests.get(info.key >> SAMPLE_BITS)
        if request is None:
            return
        touched[request.id] = request
        request.output.num_cached_tokens = max(info.num_cached_tokens, 0)
        request.metrics.queued_seconds = info.queued_seconds
        if info.logprobs is not None:
            request.output.prompt_logprobs = [
                None if one is None else readable(one, self.vocabulary) for one in info.logprobs
            ]

    def _end(self, request: ActiveRequest, sample: Sample, end: Finished, now: float) -> None:
        if end.kind or end.message:
            self._fail(request, error_of(end.kind, end.message, end.param))
            return
        sample.finish(end)
        self._leave(request, sample, now)

    def _leave(self, request: ActiveRequest, sample: Sample, now: float) -> None:
        """A sample has ended; with the last one its request has."""
        self._samples.pop(sample.key, None)
        request.num_left -= 1
        if request.num_left == 0:
            self._close(request, sample.output.finish_reason or "error", now)

    def _close(self, request: ActiveRequest, reason: str, now: float) -> None:
        del self._requests[request.id]
        metrics = request.metrics
        metrics.finished_time = now
        request.output.finished = True
        if self.observer is not None:
            first = metrics.first_token_time
            end = RequestEnd(
                seconds=now - metrics.arrival_time,
                queued_seconds=metrics.queued_seconds,
                first_token_after=None if first is None else first - metrics.arrival_time,
                num_prompt=len(request.output.prompt_token_ids),
                num_cached=request.output.num_cached_tokens,
                num_outputs=[len(sample.output.token_ids) for sample in request.samples],
                max_tokens=request.samples[0].params.max_tokens,
            )
            self.observer.ended(reason, end)

    # ends that begin here

    def abort(self, request: ActiveRequest) -> None:
        """End a request that nobody waits for any more."""
        if request.id in self._requests:
            self._drop(request)
            self._close(request, "abort", time.monotonic())
            self.link.abort(ids=(request.id,))

    def fail_all(self, error: TenonError) -> None:
        """The engine is gone: every request ends with this error, also one whose prompt is still on its way here."""
        self._lost = error
        for request in list(self._requests.values()):
            self._fail(request, error)
            if request.on_news is not None:
                request.on_news()

    def _fail(self, request: ActiveRequest, error: TenonError) -> None:
        if request.id in self._requests:
            request.error = error
            self._drop(request)
            self._close(request, "error", time.monotonic())

    def _drop(self, request: ActiveRequest) -> None:
        for sample in request.samples:
            self._samples.pop(sample.key, None)


def error_of(kind: str, message: str, param: str = "") -> TenonError:
    """The error that an engine's answer stands for. param: the field it is about, if any."""
    text = message or "the request failed"
    if kind == RequestError.__name__:
        return RequestError(text, param=param or None)
    return CapacityError(text) if kind == CapacityError.__name__ else DeviceError(text)


def check_label(name: str, value: Any) -> None:
    """Raise `RequestError` for a label that is no short printable text."""
    if not isinstance(value, str) or len(value) > MAX_SALT or not (value.isprintable() or not value):
        raise RequestError(f"{name} must be a printable text of at most {MAX_SALT} characters", param=name)
