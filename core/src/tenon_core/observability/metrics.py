"""Prometheus metrics of one engine, under `tenon:`, and under the names that dashboards of this field already know.

Fed by snapshots of the engine's counters and by the front end's clock; rendering costs nothing until it is scraped.
Labels come from closed sets: the served model's name, and why a request ended. It knows neither HTTP nor the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

FINISH_REASONS = ("stop", "length", "abort", "error")
LABEL = "model_name"
PREFIX, ALIAS_PREFIX = "tenon:", "vllm:"

# Gauges and counters taken from the engine's snapshot: metric -> (snapshot's field, help).
GAUGES = {
    "num_requests_running": ("num_running", "Sequences with a row in the running batch."),
    "num_requests_waiting": ("num_waiting", "Requests waiting for a row."),
    "num_blocks": ("num_blocks", "KV blocks of the pool."),
    "num_free_blocks": ("num_free_blocks", "KV blocks that no running sequence holds."),
}
COUNTERS = {
    "engine_steps": ("num_steps", "Steps the engine launched."),
    "num_preemptions": ("num_preemptions", "Sequences that gave their blocks up to be computed again."),
    "prompt_tokens": ("num_prompt_tokens", "Prompt tokens submitted."),
    "generation_tokens": ("num_generated_tokens", "Tokens generated."),
    "prefix_cache_queries": ("num_prefix_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("num_prefix_hits", "Prompt tokens found in the prefix cache."),
    "compiles_after_ready": ("num_compiles_after_ready", "Compilations after the engine was ready; should stay 0."),
}
USAGE = ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")

SECONDS_TO_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
SECONDS_BETWEEN_TOKENS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
SECONDS_OF_A_REQUEST = (
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
TOKENS_OF_A_REQUEST = tuple(float(2**power) for power in range(18))

# Ours -> the name of the same thing elsewhere. Families that are not here exist under `tenon:` only.
ALIASES = {
    f"{PREFIX}{name}": f"{ALIAS_PREFIX}{name}"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_success",
    )
}


class EngineSnapshot(Protocol):
    """The counters an engine tells with its steps (`engine.messages.EngineStats`). Counters only grow."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_generated_tokens(self) -> int: ...
    @property
    def num_prefix_queries(self) -> int: ...
    @property
    def num_prefix_hits(self) -> int: ...
    @property
    def num_compiles_after_ready(self) -> int: ...


class EngineMetrics:
    """All metrics of one served model. model: the name clients use, the one label value.

    Not thread-safe beyond prometheus-client's own locks: the front end's event loop calls it.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._inner = CollectorRegistry(auto_describe=False)
        self._snapshot = SnapshotCollector(model)
        self._inner.register(self._snapshot)
        self.registry.register(AliasingCollector(self._inner))
        self._model = model
        self._ends = Counter(
            f"{PREFIX}request_success",
            "Requests that ended, by reason.",
            (LABEL, "finished_reason"),
            registry=self._inner,
        )
        for reason in FINISH_REASONS:
            self._ends.labels(model, reason)
        self._refused = Counter(
            f"{PREFIX}requests_refused", "Requests turned away before they ran.", (LABEL,), registry=self._inner
        ).labels(model)
        self._up = Gauge(
            f"{PREFIX}engine_up", "1 while the engine answers, else 0.", (LABEL,), registry=self._inner
        ).labels(model)
        self._first = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", SECONDS_TO_FIRST_TOKEN
        )
        self._between = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a sequence.", SECONDS_BETWEEN_TOKENS
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "A request's mean time a token, the first one apart.",
            SECONDS_BETWEEN_TOKENS,
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", SECONDS_OF_A_REQUEST)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS_OF_A_REQUEST)
        self._output = self._histogram(
            "request_generation_tokens", "Tokens of a request's output.", TOKENS_OF_A_REQUEST
        )

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"{PREFIX}{name}", help_text, (LABEL,), registry=self._inner, buckets=buckets)
        labelled: Histogram = made.labels(self._model)
        return labelled

    def take_snapshot(self, snapshot: EngineSnapshot) -> None:
        """The engine's counters as of now: `StepUpdate.stats`, where an update has them."""
        self._snapshot.latest = snapshot

    @property
    def latest(self) -> EngineSnapshot | None:
        """The last snapshot; None before the first one."""
        return self._snapshot.latest

    def set_up(self, is_up: bool) -> None:
        """Whether the engine answers."""
        self._up.set(1 if is_up else 0)

    def first_token(self, seconds: float) -> None:
        """A sequence's first token came `seconds` after its request."""
        self._first.observe(seconds)

    def next_token(self, seconds: float, count: int = 1) -> None:
        """`count` further tokens of a sequence came `seconds` after the one before."""
        for _ in range(count):
            self._between.observe(seconds / count)

    def ended(
        self, reason: str, *, seconds: float, num_prompt: int, num_output: int, first_token_after: float | None
    ) -> None:
        """A request ended. reason: one of `FINISH_REASONS`. first_token_after: None where no token came."""
        if reason not in FINISH_REASONS:
            raise ValueError(f"finish reason {reason!r} is none of {', '.join(FINISH_REASONS)}")
        self._ends.labels(self._model, reason).inc()
        self._whole.observe(seconds)
        self._prompt.observe(num_prompt)
        self._output.observe(num_output)
        if first_token_after is not None and num_output > 1:
            self._per_token.observe((seconds - first_token_after) / (num_output - 1))

    def refused(self) -> None:
        """A request was turned away: invalid, or the queue was full."""
        self._refused.inc()

    def render(self) -> tuple[bytes, str]:
        """(body, content type) for a scraper."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class SnapshotCollector(Collector):
    """Turns the latest snapshot into metric families; none before the first one."""

    def __init__(self, model: str) -> None:
        self.latest: EngineSnapshot | None = None
        self._model = model

    def collect(self) -> Iterable[Metric]:
        latest = self.latest
        if latest is None:
            return
        for name, (attribute, help_text) in GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"{PREFIX}{name}", help_text, labels=(LABEL,)), latest, attribute)
        used = 1 - latest.num_free_blocks / latest.num_blocks if latest.num_blocks else 0.0
        usage = GaugeMetricFamily(f"{PREFIX}{USAGE[0]}", USAGE[1], labels=(LABEL,))
        usage.add_metric((self._model,), used)
        yield usage
        for name, (attribute, help_text) in COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"{PREFIX}{name}", help_text, labels=(LABEL,)), latest, attribute)

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, latest: EngineSnapshot, attribute: str
    ) -> Metric:
        family.add_metric((self._model,), float(getattr(latest, attribute)))
        metric: Metric = family
        return metric


class AliasingCollector(Collector):
    """Every family of an inner registry, and once more under its alias where it has one."""

    def __init__(self, inner: CollectorRegistry) -> None:
        self._inner = inner

    def collect(self) -> Iterator[Metric]:
        families = list(self._inner.collect())
        for family in families:  # creation times would double the series and tell nothing
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        yield from families
        yield from (renamed(family, ALIASES[family.name]) for family in families if family.name in ALIASES)


def renamed(family: Metric, name: str) -> Metric:
    """A copy of a family under another name, its samples' suffixes kept."""
    copy = Metric(name, family.documentation, family.type, family.unit)
    copy.samples = [
        Sample(name + sample.name[len(family.name) :], sample.labels, sample.value, sample.timestamp, sample.exemplar)
        for sample in family.samples
    ]
    return copy
