"""One case of `tenon bench host`: an engine of the null platform with a number of requests that never end.

schedule   which rows run, and their counters
prepare    the step's delta, its packing and copies to the device, the attention plan
launch     the executable and the copy of its results
post       taking the tokens in: rows, stop checks, the update for clients
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Assembled, ModelSource, Sockets, assemble
from tenon_core.engine.messages import GenerateRequest
from tenon_core.models.family import WeightNames
from tenon_core.models.weights import DummySource
from tenon_core.sampling.params import SamplingParams
from tenon_platforms.builtin.null.platform import NullPlatform
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import CapacityError
from tenon_platforms.model import AttentionMixer, GatedMLP, Head, Layer, ModelSpec, NormSpec

from .clock import PhaseClock, calibrate

SPREAD = 16  # prompts differ in length by this many tokens, so that blocks do not all fill in one step
SPARE = 32  # tokens a request could still make at the end
NORM = NormSpec(eps=1e-6)
TINY = Layer(
    mixer=AttentionMixer(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25),
    ffn=GatedMLP(intermediate=128, activation="silu"),
    pre_mixer=NORM,
    pre_ffn=NORM,
)
VOCABULARY = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """Milliseconds. step_ms: minimum over runs; the split's parts are minima of their own, so they need not add up."""

    requests: int
    step_ms: float
    step_ms_median: float
    schedule_ms: float
    prepare_ms: float
    launch_ms: float
    post_ms: float
    calibration_ms: float
    runs: int
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data, rounded to a tenth of a microsecond."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCase:
    """What to measure."""

    requests: int
    steps: int
    runs: int
    warmup: int
    prompt_len: int

    def measure(self) -> HostResult:
        """Run it. Raises `CapacityError` where a request ended or was preempted: then no step was steady."""
        made = self._assemble()
        engine = made.engine
        with engine.loop():
            self._submit_all(made)
            while engine.stats().num_waiting or engine.stats().num_prompt_tokens == 0:
                engine.step()
            for _ in range(self.warmup):
                engine.step()
            gc.collect()
            gc.freeze()
            calibration: list[float] = []
            whole: list[float] = []
            for _ in range(self.runs):
                calibration.append(calibrate())
                start = time.perf_counter()
                for _ in range(self.steps):
                    engine.step()
                whole.append((time.perf_counter() - start) / self.steps)
            clock = PhaseClock.around(engine, made.runner)
            splits = [clock.run(engine.step, self.steps) for _ in range(self.runs)]
            gc.unfreeze()
        self._check(made)
        engine.shutdown()
        best = {phase: min(split[phase] for split in splits) * 1e3 for phase in splits[0]}
        return HostResult(
            requests=self.requests,
            step_ms=min(whole) * 1e3,
            step_ms_median=statistics.median(whole) * 1e3,
            schedule_ms=best["schedule"],
            prepare_ms=best["prepare"],
            launch_ms=best["launch"],
            post_ms=best["post"],
            calibration_ms=min(calibration) * 1e3,
            runs=self.runs,
            steps=self.steps,
        )

    @property
    def output_len(self) -> int:
        """More tokens than all runs together make, prompts' steps included."""
        prefill = -(-self.requests * (self.prompt_len + SPREAD) // 4096) + 8
        return self.warmup + 2 * self.runs * self.steps + prefill + SPARE

    def _assemble(self) -> Assembled:
        length = self.prompt_len + SPREAD + self.output_len + 1
        spec = ModelSpec(
            architecture="null",
            vocab_size=VOCABULARY,
            hidden=64,
            layers=(TINY, TINY),
            final_norm=NORM,
            head=Head(tied=True),
            max_positions=length,
        )
        names = WeightNames()
        blocks = self.requests * (-(-length // 16) + 2) + 1
        config = EngineConfig.from_flat(
            model="null", max_num_seqs=self.requests, max_waiting=self.requests, num_blocks=blocks
        )
        return assemble(
            config,
            Sockets.open(NullPlatform()),
            ModelSource(
                name="null",
                spec=spec,
                names=names,
                weights=DummySource.for_model(spec, names, dtype=DType.FLOAT32),
                eos_token_ids=(2,),
            ),
            dtype=DType.FLOAT32,
            kv_dtype=DType.FLOAT32,
            max_model_len=length,
        )

    def _submit_all(self, made: Assembled) -> None:
        params = SamplingParams(temperature=0.0, seed=1, max_tokens=self.output_len)
        for index in range(self.requests):
            prompt = np.full(self.prompt_len + index % SPREAD, 3 + index % (VOCABULARY - 3), dtype="<i4")
            made.engine.submit(GenerateRequest(id=index, prompt=prompt.tobytes(), params=params))

    def _check(self, made: Assembled) -> None:
        stats = made.engine.stats()
        if stats.num_running != self.requests or stats.num_preemptions:
            raise CapacityError(
                f"the measurement is void: {stats.num_running} of {self.requests} requests still run and"
                f" {stats.num_preemptions} were preempted",
                remedy="lower --requests, --steps or --runs",
            )
