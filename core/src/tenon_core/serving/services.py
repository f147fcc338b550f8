"""`Services`: what the routes work with. One object a server, filled as the start goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from tenon_core.client.conversation import Conversation
from tenon_core.client.detokenizer import TokenBytes
from tenon_core.client.generation import ActiveRequest, Generation
from tenon_core.client.grammars import GrammarChecks
from tenon_core.client.link import EngineLostError
from tenon_core.client.samples import SampleDelta
from tenon_core.client.sleeping import Sleeping
from tenon_core.client.tokenizer import ClientTokenizer
from tenon_core.client.zmq_link import ZmqLink
from tenon_core.engine.messages import Ready
from tenon_core.observability.metrics import EngineMetrics
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import CapacityError, RequestError, TenonError
from tenon_platforms.pools import Pool

from .config import ServerConfig
from .errors import HttpError, client_gone, not_ready
from .parsers.registry import Parsers
from .response_shares import ResponseShares
from .response_store import ResponseStore
from .tracing import CURRENT, RequestSpan, Traces

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepFace:
    """What puts the engine to sleep."""

    link: ZmqLink
    sleeping: Sleeping


@dataclass(slots=True, kw_only=True)
class Services:
    """state: what the supervisor says of the engine, as text. The rest is None until the start has come to it.

    model_names: as listed for clients; aliases: further names that are understood.
    """

    config: ServerConfig
    model_names: tuple[str, ...]
    aliases: frozenset[str] = frozenset()
    metrics: EngineMetrics
    state: Callable[[], str]
    has_sleep: bool = False  # the engine was asked to be able to
    sleep_face: Callable[[], SleepFace | None] = lambda: None
    created: int = field(default_factory=lambda: int(time.time()))
    generation: Generation | None = None
    facts: ModelFacts | None = None
    ready: Ready | None = None  # what the engine said of its start
    tokenizer: ClientTokenizer | None = None
    vocabulary: TokenBytes | None = None
    conversation: Conversation | None = None
    parsers: Parsers = field(default_factory=Parsers)
    grammars: GrammarChecks = field(default_factory=GrammarChecks)
    traces: Traces | None = None
    draining_since: float | None = None  # by the monotonic clock
    siblings: tuple[Path, ...] = ()  # sockets of the other API processes, for their metrics
    responses: ResponseStore = field(init=False)
    shares: ResponseShares = field(default_factory=ResponseShares)  # with the other API processes
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.responses = ResponseStore(
            max_entries=self.config.max_stored_responses, max_bytes=self.config.stored_responses_bytes
        )

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold on to work that outlives its HTTP request."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        """Take no more requests; those that run have `--drain-seconds` from now, of whatever protocol."""
        if self.draining_since is None:
            self.draining_since = time.monotonic()

    def fail_sleepers(self) -> None:
        """The server ends: what a sleeping engine holds will not finish, since nobody can wake it up any more."""
        face = self.sleep_face()
        if self.generation is not None and face is not None and face.sleeping.asleep:
            self.generation.fail_all(EngineLostError("the server is being stopped while it sleeps: try again later"))

    @property
    def is_draining(self) -> bool:
        """Whether the server ends."""
        return self.draining_since is not None

    @property
    def drain_seconds_left(self) -> float:
        """What running requests still have of it."""
        gone = 0.0 if self.draining_since is None else time.monotonic() - self.draining_since
        return max(0.0, self.config.drain_seconds - gone)

    @property
    def asleep(self) -> tuple[Pool, ...]:
        """Pools of device memory that are given back."""
        face = self.sleep_face()
        return () if face is None else face.sleeping.asleep

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered."""
        return self.generation is not None and self.state() == "ready" and not self.is_draining

    def ready_generation(self) -> tuple[Generation, ModelFacts]:
        """The generation and the model's facts. Raises 503 before the engine is ready, or where it is gone."""
        state = "shutting down" if self.is_draining else self.state()
        if self.generation is None or self.facts is None or state not in ("ready", "stalled"):
            raise not_ready("starting" if state == "ready" else state)
        return self.generation, self.facts

    def ready_tokenizer(self) -> tuple[ClientTokenizer, Conversation]:
        """The tokenizer and what renders conversations."""
        if self.tokenizer is None or self.conversation is None:
            raise not_ready(self.state())
        return self.tokenizer, self.conversation

    def check_model(self, name: str | None) -> str:
        """The served name for an answer. Raises 404 for a model that is not served."""
        if name is None or name in self.aliases:
            return self.model_names[0]
        if name in self.model_names:
            return name
        raise HttpError(
            404, f"model {name!r:.200} is not served here: it is {self.model_names[0]!r}", param="model",
            code="model_not_found",
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Work:
    """The active requests of one HTTP request: one a prompt. `pieces` yields what is new until all are done."""

    generation: Generation
    requests: list[ActiveRequest] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _span: RequestSpan | None = None

    @classmethod
    def start(
        cls,
        generation: Generation,
        prompts: Sequence[tuple[str | None, Sequence[int]]],
        params: SamplingParams,
        *,
        is_watched: bool,
        **options: Any,
    ) -> Work:
        """Submit all prompts, or none. Raises `RequestError`, `CapacityError`."""
        work = cls(generation=generation)
        try:
            for text, ids in prompts:
                request = generation.start(
                    ids, params, prompt=text, on_news=work._news.set, is_watched=is_watched, **options
                )
                work.requests.append(request)
        except (RequestError, CapacityError):
            work.abort()
            raise
        work._begin_span(params, is_stream=is_watched)
        return work

    @classmethod
    def start_all(cls, generation: Generation, starts: Sequence[Callable[..., ActiveRequest]]) -> Work:
        """Submit by calling every start with `on_news`, or none. Raises `RequestError`, `CapacityError`."""
        work = cls(generation=generation)
        try:
            for start in starts:
                work.requests.append(start(on_news=work._news.set))
        except (RequestError, CapacityError):
            work.abort()
            raise
        work._begin_span(None)
        return work

    def _begin_span(self, params: SamplingParams | None, *, is_stream: bool = False) -> None:
        """Tell the span of this HTTP request, if it has one, what was submitted."""
        self._span = CURRENT.get()
        if self._span is not None:
            self._span.begin_work(self.requests, params, is_stream=is_stream)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return all(request.is_done for request in self.requests)

    async def first_news(self) -> None:
        """Wait until anything came. Raises what the engine answered instead."""
        await self._news.wait()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error of any request."""
        for request in self.requests:
            if request.error is not None:
                raise request.error

    async def finish(self) -> None:
        """Wait for the end of all. Raises what the engine answered instead."""
        while not self.is_done:
            await self._news.wait()
            self._news.clear()
            self.raise_error()
        self.raise_error()

    async def deltas(self, interval: int) -> AsyncIterator[list[tuple[ActiveRequest, SampleDelta]]]:
        """What is new, step by step. interval: tokens to gather before a piece is worth sending."""
        told: set[int] = set()
        while len(told) < sum(len(request.samples) for request in self.requests):
            await self._news.wait()
            self._news.clear()
            self.raise_error()
            found = []
            for request in self.requests:
                for sample in request.samples:
                    if sample.key in told or not (sample.is_finished or sample.num_untold >= interval):
                        continue
                    if sample.is_finished:
                        told.add(sample.key)
                    found.append((request, sample.take_delta()))
            if found:
                yield found

    def abort(self) -> None:
        """End what still runs."""
        for request in self.requests:
            self.generation.abort(request)
        if self._span is not None:
            self._span.end_work(self.requests)

    def stop(self, error: TenonError) -> None:
        """End what still runs, and raise `error` in whoever waits for it."""
        for request in self.requests:
            if not request.is_done:
                request.error = error
        self.abort()
        self._news.set()


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, given up (cancelled) where the client disconnects before."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise client_gone()
    finally:
        for one in (task, watcher):
            one.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
