"""Prometheus metrics of one engine, under `tenon:`, and under the names that dashboards of this field already know.

Fed by snapshots of the engine's counters and by the front end's clock; rendering costs nothing until it is scraped.
Labels come from closed sets: the served model's name, and why a request ended. It knows neither HTTP nor the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .metric_names import (
    ALIASES,
    ASLEEP,
    CACHE,
    CACHE_LABELS,
    COUNTERS,
    ENDS,
    FINISH_REASONS,
    GAUGES,
    HISTOGRAMS,
    LABEL,
    POOLS,
    PREFIX,
    REFUSED,
    STEP_TOKENS,
    TOKENS_OF_A_STEP,
    UP,
    USAGE,
)
from .request_end import RequestEnd


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
    @property
    def num_scheduled_tokens(self) -> int: ...
    @property
    def num_steps_by_size(self) -> tuple[int, ...]: ...


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
            f"{PREFIX}{ENDS}", "Requests that ended, by reason.", (LABEL, "finished_reason"), registry=self._inner
        )
        for reason in FINISH_REASONS:
            self._ends.labels(model, reason)
        self._refused = Counter(
            f"{PREFIX}{REFUSED}", "Requests turned away before they ran.", (LABEL,), registry=self._inner
        ).labels(model)
        self._up = Gauge(f"{PREFIX}{UP}", "1 while the engine answers, else 0.", (LABEL,), registry=self._inner).labels(
            model
        )
        self._asleep = Gauge(
            f"{PREFIX}{ASLEEP}", "1 while a pool of device memory is given back, else 0.", (LABEL, "pool"),
            registry=self._inner,
        )  # fmt: skip
        self.set_asleep(())
        self._histograms: dict[str, Histogram] = {
            name: Histogram(f"{PREFIX}{name}", help_text, (LABEL,), registry=self._inner, buckets=buckets).labels(model)
            for name, (help_text, buckets) in HISTOGRAMS.items()
        }
        self._between = self._histograms["inter_token_latency_seconds"]

    def _observe(self, **values: float | None) -> None:
        """What is known of each histogram's value."""
        for name, value in values.items():
            if value is not None:
                self._histograms[name].observe(value)

    def take_snapshot(self, snapshot: EngineSnapshot) -> None:
        """The engine's counters as of now: `StepUpdate.stats`, where an update has them."""
        self._snapshot.latest = snapshot

    def set_block_size(self, num_tokens: int) -> None:
        """Tokens of a KV block."""
        self._snapshot.block_size = num_tokens

    @property
    def latest(self) -> EngineSnapshot | None:
        """The last snapshot; None before the first one."""
        return self._snapshot.latest

    def set_up(self, is_up: bool) -> None:
        """Whether the engine answers."""
        self._up.set(1 if is_up else 0)

    def set_asleep(self, pools: Collection[str]) -> None:
        """Which of `POOLS` are given back."""
        for pool in POOLS:
            self._asleep.labels(self._model, pool).set(1 if pool in pools else 0)

    def first_token(self, seconds: float) -> None:
        """A sequence's first token came `seconds` after its request."""
        self._observe(time_to_first_token_seconds=seconds)

    def next_token(self, seconds: float, count: int = 1) -> None:
        """`count` further tokens of a sequence came `seconds` after the one before."""
        for _ in range(count):
            self._between.observe(seconds / count)

    def ended(self, reason: str, end: RequestEnd) -> None:
        """A request ended. reason: one of `FINISH_REASONS`."""
        if reason not in FINISH_REASONS:
            raise ValueError(f"finish reason {reason!r} is none of {', '.join(FINISH_REASONS)}")
        self._ends.labels(self._model, reason).inc()
        num_output, first, queued = sum(end.num_outputs), end.first_token_after, end.queued_seconds
        ran = None if queued is None else end.seconds - queued
        decoded = None if first is None else end.seconds - first
        self._observe(
            e2e_request_latency_seconds=end.seconds,
            request_queue_time_seconds=queued,
            request_inference_time_seconds=ran,
            request_prefill_time_seconds=None if queued is None or first is None else first - queued,
            request_decode_time_seconds=decoded,
            request_time_per_output_token_seconds=decoded / (num_output - 1)
            if decoded is not None and num_output > 1
            else None,
            request_prompt_tokens=end.num_prompt,
            request_prefill_kv_computed_tokens=None if queued is None else end.num_prompt - end.num_cached,
            request_generation_tokens=num_output,
            request_max_num_generation_tokens=max(end.num_outputs, default=0),
            request_params_max_tokens=end.max_tokens,
            request_params_n=len(end.num_outputs),
        )

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
        self.block_size: int | None = None
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
        yield self._steps(latest)
        if self.block_size is not None:
            info = GaugeMetricFamily(f"{PREFIX}{CACHE[0]}", CACHE[1], labels=(LABEL, *CACHE_LABELS))
            info.add_metric((self._model, str(self.block_size), str(latest.num_blocks)), 1)
            yield info

    def _steps(self, latest: EngineSnapshot) -> Metric:
        """Steps by their size."""
        family = HistogramMetricFamily(f"{PREFIX}{STEP_TOKENS[0]}", STEP_TOKENS[1], labels=(LABEL,))
        bounds, total, buckets = (*map(float, TOKENS_OF_A_STEP), "+Inf"), 0, []
        for bound, count in zip(bounds, latest.num_steps_by_size or (0,) * len(bounds), strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        family.add_metric((self._model,), buckets, latest.num_scheduled_tokens)
        metric: Metric = family
        return metric

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, latest: EngineSnapshot, attribute: str
    ) -> Metric:
        family.add_metric((self._model,), float(getattr(latest, attribute)))
        metric: Metric = family
        return metric


class AliasingCollector(Collector):
    """Every family of an inner registry, and once more under each of its aliases."""

    def __init__(self, inner: CollectorRegistry) -> None:
        self._inner = inner

    def collect(self) -> Iterator[Metric]:
        families = list(self._inner.collect())
        for family in families:  # creation times would double the series and tell nothing
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        yield from families
        for family in families:
            yield from (renamed(family, name) for name in ALIASES.get(family.name, ()))


def renamed(family: Metric, name: str) -> Metric:
    """A copy of a family under another name, its samples' suffixes kept, its labels as they are called there."""
    copy = Metric(name, family.documentation, family.type, family.unit)
    for sample in family.samples:
        labels = {CACHE_LABELS.get(label, label): value for label, value in sample.labels.items()}
        suffix = sample.name[len(family.name) :]
        copy.samples.append(Sample(name + suffix, labels, sample.value, sample.timestamp, sample.exemplar))
    return copy
