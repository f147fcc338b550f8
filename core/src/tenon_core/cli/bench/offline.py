"""An engine in this process, driven by tokens alone or through `LLM`: what `bench throughput` and `latency` time."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tenon_core.cli.model_card import open_card
from tenon_core.config import EngineConfig
from tenon_core.engine.engine import Engine
from tenon_core.engine.messages import SAMPLE_BITS, FinishReason, GenerateRequest, StepUpdate
from tenon_core.engine.start import StartReport, start_with_report
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.errors import DeviceError

from .workload import Ask

if TYPE_CHECKING:
    from tenon_core.client.outputs import RequestOutput
    from tenon_core.llm import LLM

Floats = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class BatchTimes:
    """One batch. seconds: from submission to the last token. first, last: a request's, after submission. gaps: between
    tokens of a request. num_output: tokens of a request."""

    seconds: float
    first: Floats
    last: Floats
    num_output: npt.NDArray[np.int64]
    gaps: list[float]

    @property
    def per_token(self) -> list[float]:
        """Each request's mean time a token after its first."""
        many = self.num_output > 1
        spans = (self.last[many] - self.first[many]) / (self.num_output[many] - 1)
        found: list[float] = spans.tolist()
        return found


@dataclass(slots=True, kw_only=True)
class OfflineEngine:
    """A started engine. report: what its start decided."""

    config: EngineConfig
    engine: Engine
    report: StartReport
    _next_id: int = 1
    _llm: LLM | None = None

    @classmethod
    def start(cls, config: EngineConfig) -> OfflineEngine:
        """Start it. Raises `TenonError`."""
        engine, report = start_with_report(config)
        gc.collect()
        gc.freeze()
        return cls(config=config, engine=engine, report=report)

    def describe(self) -> dict[str, Any]:
        """What was measured, for reports."""
        plan = self.report.plan
        return {
            "model": self.config.model.model,
            "platform": f"{plan.platform} {plan.platform_version}",
            "dtype": plan.dtype,
            "max_num_seqs": self.engine.facts.max_num_seqs,
            "max_model_len": self.engine.facts.max_model_len,
            "num_blocks": plan.num_blocks,
            "block_size": plan.block_size,
        }

    def tokenized(self, asks: Sequence[Ask]) -> list[Ask]:
        """The same with token ids; text goes through the model's tokenizer."""
        if not any(isinstance(ask.prompt, str) for ask in asks):
            return list(asks)
        tokenizer = open_card(self.config).checkpoint.load_tokenizer()
        return [
            replace(ask, prompt=tokenizer.encode(ask.prompt).ids) if isinstance(ask.prompt, str) else ask
            for ask in asks
        ]

    def run(self, asks: Sequence[Ask], *, temperature: float = 0.0, ignore_eos: bool = True) -> BatchTimes:
        """Submit everything at once and step to the end. Raises `DeviceError` where a request fails."""
        engine, base = self.engine, self._next_id
        self._next_id += len(asks)
        requests = [
            GenerateRequest(
                id=base + index,
                prompt=np.array(ask.prompt, dtype="<i4").tobytes(),
                params=SamplingParams(
                    temperature=temperature, max_tokens=ask.output_len, seed=index, ignore_eos=ignore_eos
                ),
            )
            for index, ask in enumerate(asks)
        ]
        clock = _Clock(len(asks), base)
        for request in requests:
            engine.submit(request)
        with engine.loop():
            while engine.has_work():
                update = engine.step()
                if update is not None:
                    clock.take(update)
        return clock.times()

    def run_llm(self, asks: Sequence[Ask], *, temperature: float = 0.0, ignore_eos: bool = True) -> BatchTimes:
        """The same through `LLM`, texts made. Gaps between tokens are not seen from there."""
        from tenon_core.client.inline import InlineLink
        from tenon_core.client.model_files import open_model_files
        from tenon_core.llm import LLM

        if self._llm is None:
            files = open_model_files(self.config)
            self._llm = LLM.over(InlineLink(engine=self.engine), files, seed=self.config.platform.seed)
        params = [
            SamplingParams(temperature=temperature, max_tokens=ask.output_len, seed=index, ignore_eos=ignore_eos)
            for index, ask in enumerate(asks)
        ]
        start = time.monotonic()
        outputs = self._llm.generate([ask.prompt for ask in asks], params, use_tqdm=False)
        seconds = time.monotonic() - start
        return BatchTimes(
            seconds=seconds,
            first=np.array([_reading(output, "first_token_time") - start for output in outputs]),
            last=np.array([_reading(output, "last_token_time") - start for output in outputs]),
            num_output=np.array([len(output.outputs[0].token_ids) for output in outputs]),
            gaps=[],
        )

    def shutdown(self) -> None:
        """Give the device back."""
        self.engine.shutdown()


def _reading(output: RequestOutput, name: str) -> float:
    """A clock reading of a request, which has at least one token."""
    reading: float = getattr(output.metrics, name)
    return reading


class _Clock:
    """When each request's tokens came; a few numpy calls a step."""

    def __init__(self, count: int, base: int) -> None:
        self._base = base
        self._start = time.perf_counter()
        self._first = np.full(count, np.nan)
        self._last = np.full(count, np.nan)
        self._counts = np.zeros(count, dtype=np.int64)
        self._gaps: list[Floats] = []

    def take(self, update: StepUpdate) -> None:
        """One step's update."""
        now = time.perf_counter() - self._start
        for end in update.finished:
            if end.reason >= FinishReason.ABORT:
                raise DeviceError(f"request {(end.key >> SAMPLE_BITS) - self._base} failed: {end.message}")
        rows = (np.frombuffer(update.keys, dtype=np.int64) >> SAMPLE_BITS) - self._base
        if not len(rows):
            return
        going = rows[self._counts[rows] > 0]
        self._gaps.append(now - self._last[going])
        self._first[rows[self._counts[rows] == 0]] = now
        self._last[rows] = now
        self._counts[rows] += 1

    def times(self) -> BatchTimes:
        """All of it."""
        gaps = np.concatenate(self._gaps) if self._gaps else np.zeros(0)
        return BatchTimes(
            seconds=float(np.nanmax(self._last)),
            first=self._first,
            last=self._last,
            num_output=self._counts,
            gaps=gaps.tolist(),
        )
