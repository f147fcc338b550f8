"""Level 7, performance: figures, never a judgement of absolute times. Only a ratio to an earlier report can fail.

Rooflines are measured, not looked up: the device's own copy and its own largest product. A share is the time that the
op's bytes or operations need at that rate, over the time it took; what fits in a cache may exceed 1.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tenon_platforms.attention import AttentionKernel
from tenon_platforms.batch import GQAInputs
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import Dense, LinearPart, MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.torch_dtypes import to_torch

from ..cases.paged import PagedDraw, make_batch, make_world
from ..cases.weights import generator, stored_linear, stored_part
from ..engines import Engine, prompts_of, running
from ..meters.figures import SHARE, figure, regressions, same_machine
from ..meters.timing import seconds_of
from ..models.store import ModelStore
from ..profile import Profile
from ..registry import Case, Check, ConformanceError, NotApplicableError
from ..report.results import fingerprint
from ..subject import Subject
from .l2.attention import block_size_of
from .l2.running import bind

COPY_BYTES = 2**25
HIDDEN = 1024
PEAK = "peak"
TRACE_LENGTHS = (12, 60, 5, 100, 33, 48, 80, 20)  # prompts of the fixed trace
TRACE_OUTPUTS = (24, 12, 32, 8, 20, 28, 16, 24)
ARRIVES_EVERY = 2  # steps


def peaks(subject: Subject, profile: Profile, case: Case) -> None:
    """What the device moves and multiplies a second."""
    device, size = subject.device, COPY_BYTES * (8 if profile.wide else 1)
    source, target = device.zeros((size,), torch.uint8), device.zeros((size,), torch.uint8)
    _tell(
        subject,
        f"{PEAK}.bytes",
        2 * size / seconds_of(device, lambda: device.copy(target, source), profile.repeats),
        "B/s",
    )
    rates = []
    for tokens in (128, 512) if profile.wide else (256,):
        seconds, _, flops = _linear(subject, profile, tokens)
        rates.append(flops / seconds)
    _tell(subject, f"{PEAK}.flops", max(rates), "flop/s")


def kernels(subject: Subject, profile: Profile, case: Case) -> None:
    """One op at one size: seconds, and its share of the roofline."""
    name, tokens = case.value
    if f"{PEAK}.flops" not in subject.measured:
        peaks(subject, profile, case)
    seconds, moved, flops = MAKERS[name](subject, profile, tokens)
    bound = max(moved / subject.measured[f"{PEAK}.bytes"]["value"], flops / subject.measured[f"{PEAK}.flops"]["value"])
    if not math.isfinite(seconds) or seconds <= 0:
        raise ConformanceError(f"{name} of {tokens} tokens took {seconds} s: is synchronize() waiting?")
    _tell(subject, f"op.{case.id}.seconds", seconds, "s")
    _tell(subject, f"op.{case.id}.roofline", bound / seconds, SHARE)


def steps(subject: Subject, profile: Profile, case: Case) -> None:
    """Host time of a decode step. A device that queues work lets the host go on: waiting is not counted there.

    On a synchronous device the kernels are in it; the model is so small that they are the smaller part.
    """
    rows: int = case.value
    with _tiny(subject, max_num_seqs=rows) as engine:
        for place, prompt in enumerate(prompts_of([8] * rows, seed=1)):
            engine.submit(place, prompt, max_tokens=100)
        walls, hosts = [], []
        while engine.link.has_work():
            wall, host = time.perf_counter(), time.thread_time()
            engine.step()
            walls.append(time.perf_counter() - wall)
            hosts.append(time.thread_time() - host)
        engine.check()
    middle = slice(len(walls) // 4, -len(walls) // 4)
    _tell(subject, f"step.rows-{rows}.seconds", statistics.median(walls[middle]), "s")
    _tell(subject, f"step.rows-{rows}.host", statistics.median(hosts[middle]), "s")


def trace(subject: Subject, profile: Profile, case: Case) -> None:
    """A fixed trace: requests that come every few steps. Time to the first token, between tokens, and in all."""
    prompts = prompts_of(TRACE_LENGTHS, seed=3)
    firsts: list[float] = []
    between: list[float] = []
    rates: list[float] = []
    with _tiny(subject, enable_prefix_caching=False) as engine:
        for _ in range(max(profile.repeats // 2, 2)):
            _one_trace(engine, prompts, firsts, between, rates)
    _tell(subject, "trace.ttft.median", statistics.median(firsts), "s")
    _tell(subject, "trace.ttft.p90", sorted(firsts)[int(0.9 * (len(firsts) - 1))], "s")
    _tell(subject, "trace.itl.median", statistics.median(between), "s")
    _tell(subject, "trace.throughput", statistics.median(rates), "1/s")


def _one_trace(
    engine: Engine, prompts: list[list[int]], firsts: list[float], between: list[float], rates: list[float]
) -> None:
    engine.forget()
    came: dict[int, float] = {}
    last: dict[int, float] = {}
    tokens, begin, begin_step = 0, time.perf_counter(), engine.num_steps
    while engine.link.has_work() or len(came) < len(prompts):
        while len(came) < len(prompts) and engine.num_steps - begin_step >= len(came) * ARRIVES_EVERY:
            place = len(came)
            came[place] = time.perf_counter()
            engine.submit(place, prompts[place], max_tokens=TRACE_OUTPUTS[place])
        got, now = engine.step(), time.perf_counter()
        tokens += len(got)
        for request, _ in got:
            if request in last:
                between.append(now - last[request])
            else:
                firsts.append(now - came[request])
            last[request] = now
    rates.append(tokens / (time.perf_counter() - begin))
    if tokens != sum(TRACE_OUTPUTS):
        raise ConformanceError(f"the trace has {sum(TRACE_OUTPUTS)} tokens, {tokens} came")
    engine.check()


def regression(subject: Subject, profile: Profile, case: Case) -> None:
    """No figure is worse than in the earlier report by more than the ratio."""
    baseline = subject.baseline
    if baseline is None:
        raise NotApplicableError("no earlier report was named: --baseline FILE")
    if (other := same_machine(fingerprint(subject), baseline.machine)) or baseline.profile != profile.name:
        raise NotApplicableError(f"{baseline.path} does not compare: {other or f'its profile is {baseline.profile}'}")
    worse = regressions(subject.measured, baseline)
    if worse:
        lines = "\n".join(worse)
        raise ConformanceError(f"{len(worse)} figures are more than {baseline.ratio:g} times worse:\n{lines}")


def _tell(subject: Subject, name: str, value: float, unit: str) -> None:
    if not math.isfinite(value) or value < 0:
        raise ConformanceError(f"{name} came out as {value}")
    subject.measured[name] = figure(value, unit)


def _tiny(subject: Subject, **flat: Any) -> Any:
    dtype = DType.FLOAT32 if DType.FLOAT32 in subject.capabilities.dtypes else subject.capabilities.dtypes[0]
    return running(subject, ModelStore.of(subject).tiny("llama").path, dtype=dtype.value, **flat)


Work = tuple[float, float, float]  # seconds, bytes, operations


def _linear(subject: Subject, profile: Profile, tokens: int) -> Work:
    dtype = subject.capabilities.dtypes[0]
    part = LinearPart(name="p", out_features=HIDDEN, scheme=Dense(stored=dtype))
    spec = MergedLinearSpec(in_features=HIDDEN, parts=(part,), dtype=dtype)
    kernel = subject.choose(spec)
    held = bind(subject, kernel, stored_linear(spec, generator(1)), spec.op)
    x = _rows(subject, tokens, dtype)
    element = to_torch(dtype).itemsize
    with subject.device.inference_context():
        seconds = seconds_of(subject.device, lambda: kernel.run(x, held), profile.repeats)
    return seconds, element * (HIDDEN * HIDDEN + 2 * tokens * HIDDEN), 2 * tokens * HIDDEN * HIDDEN


def _norm(subject: Subject, profile: Profile, tokens: int) -> Work:
    dtype = subject.capabilities.dtypes[0]
    kernel = subject.choose(RMSNormSpec(hidden=HIDDEN, eps=1e-6, dtype=dtype))
    weight = torch.randn(HIDDEN, generator=generator(2)).to(to_torch(dtype))
    held = bind(subject, kernel, weight, RMSNormSpec.op)
    x = _rows(subject, tokens, dtype)
    with subject.device.inference_context():
        seconds = seconds_of(subject.device, lambda: kernel.run(x, held), profile.repeats)
    return seconds, to_torch(dtype).itemsize * 2 * tokens * HIDDEN, 4 * tokens * HIDDEN


def _embedding(subject: Subject, profile: Profile, tokens: int) -> Work:
    dtype = subject.capabilities.dtypes[0]
    spec = EmbeddingSpec(vocab_size=4096, hidden=HIDDEN, scheme=Dense(stored=dtype), dtype=dtype)
    kernel = subject.choose(spec)
    held = bind(subject, kernel, stored_part(spec.scheme, (4096, HIDDEN), generator(3)), spec.op)
    ids = subject.to_device(torch.randint(0, 4096, (tokens,), generator=generator(4), dtype=torch.int32))
    with subject.device.inference_context():
        seconds = seconds_of(subject.device, lambda: kernel.run(ids, held), profile.repeats)
    return seconds, to_torch(dtype).itemsize * 2 * tokens * HIDDEN, 0.0


def _attention(subject: Subject, profile: Profile, tokens: int) -> Work:
    """Decodes of 8 rows with so many tokens before."""
    rows, dtype = 8, subject.capabilities.dtypes[0]
    kv = dtype if dtype in subject.capabilities.kv_dtypes else subject.capabilities.kv_dtypes[0]
    spec = AttentionSpec(num_heads=16, num_kv_heads=4, head_dim=64, scale=0.125, dtype=dtype, kv_dtype=kv)
    kernel = subject.choose(spec, subject.device)
    assert isinstance(kernel, AttentionKernel)
    backend = kernel.backend
    world = make_world(spec, PagedDraw(((tokens, 1),) * rows), block_size_of(backend))
    query = torch.randn((rows, 16, 64), generator=generator(5)).to(to_torch(dtype))
    with subject.device.inference_context():
        (cache,) = backend.allocate(world.num_blocks, world.block_size, 1)
        plan = backend.plan(make_batch(subject, world))
        inputs = GQAInputs(query=subject.to_device(query), cache=cache)
        seconds = seconds_of(subject.device, lambda: backend.run(inputs, plan), profile.repeats)
    moved = rows * (tokens + 1) * 2 * 4 * 64 * to_torch(kv).itemsize
    return seconds, moved, rows * (tokens + 1) * 4 * 16 * 64


def _rows(subject: Subject, tokens: int, dtype: DType) -> Any:
    return subject.to_device(torch.randn((tokens, HIDDEN), generator=generator(6)).to(to_torch(dtype)))


MAKERS = {"merged_linear": _linear, "rms_norm": _norm, "embedding": _embedding, "attention": _attention}
SIZES = {
    "merged_linear": ((1, 64), (1, 8, 64, 512)),
    "rms_norm": ((64,), (1, 64, 1024)),
    "embedding": ((64,), (1, 64, 1024)),
    "attention": ((255,), (255, 1023)),
}


def _sizes(subject: Subject, profile: Profile) -> Iterator[Case]:
    for name, (quick, full) in SIZES.items():
        for tokens in full if profile.wide else quick:
            yield Case(id=f"{name}-{tokens}", value=(name, tokens))


def _batches(subject: Subject, profile: Profile) -> Iterable[Case]:
    return [Case(id=f"rows-{rows}", value=rows) for rows in ((1, 4, 32) if profile.wide else (1, 4))]


CHECKS = (
    Check(level="L7", name="peaks", what="bytes and operations a second", run=peaks),
    Check(level="L7", name="kernels", what="seconds and share of the roofline", cases=_sizes, run=kernels),
    Check(level="L7", name="steps", what="host time of a decode step", cases=_batches, run=steps),
    Check(level="L7", name="trace", what="TTFT, ITL and throughput on a fixed trace", run=trace),
    Check(level="L7", name="regression", what="no figure much worse than before", run=regression),
)
