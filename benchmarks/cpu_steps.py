"""Where a step of the CPU platform goes: each kind of kernel beside the bytes it must read; whole runs step by step.

    taskset -c 0,1 python benchmarks/cpu_steps.py MODEL [--threads 2] [--rows 1,16,32] [--requests 16,32]

MODEL: a Llama-like model (weights may be random), a folder of safetensors or a GGUF file, whose blocks are computed in
place. Needs the native library: its tape replays a step with the time of each call, in which is the wait for the call's
last thread. Three parts, in one run:

    reads  what the threads read a second: a plain loop over 512 MiB, and a product of one token; the better is *memory*
    steps  decode steps of some rows at a context of 192, and prompt steps: ms by kind of call, bytes (weights, KV) and
           the GB/s they make, for prompts GFLOP/s; *floor*: bytes by memory; *over*: what the kind takes beyond it
    runs   so many requests of 128 tokens in and 128 out: how the seconds divide, and the share of the limit reached:
           prompts at the speed of one prompt of 512 tokens, then 127 steps of bytes by memory
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cpu import Tenon, prompts_of, seconds

from tenon_core.models.kv_pools import plan_pools
from tenon_cpu import native
from tenon_cpu.device import CPUDevice
from tenon_cpu.memory import Slabs
from tenon_cpu.native_linear import LinearCall, NativeLinear, PackedWeight
from tenon_cpu.step_calls import kernel
from tenon_cpu.tape import Tape, TapeExecutable
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import Executable
from tenon_platforms.shapes import ShapeKey

PROMPT, OUTPUT, PREFILL, CONTEXT = 128, 128, 512, 192
ROUNDS, PROMPT_ROUNDS = 15, 4
READ_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model, from its configuration. kv_bytes: of one token of context in all layers."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    vocab: int
    kv_bytes: int

    @classmethod
    def of(cls, config: dict[str, Any], kv_bytes: int) -> Shape:
        if config.get("num_experts") or config.get("num_local_experts"):
            raise SystemExit("a mixture of experts: what a step reads of it depends on its tokens (see cpu.py)")
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab=config["vocab_size"],
            kv_bytes=kv_bytes,
        )

    def kinds(self) -> dict[tuple[int, int], str]:
        """(columns, width of the result) of the linears."""
        qkv, attended = (self.heads + 2 * self.kv_heads) * self.dim, self.heads * self.dim
        return {
            (self.hidden, self.inner): "gate/up",
            (self.hidden, qkv): "qkv",
            (attended, self.hidden): "out",
            (self.inner, self.hidden): "down",
            (self.hidden, self.vocab): "head",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What calls of a model are: its shape, and its linears by their handles."""

    shape: Shape
    linears: dict[int, NativeLinear]

    @classmethod
    def of(cls, shape: Shape) -> Work:
        """Of the only engine of this process."""
        linears = (one for one in gc.get_objects() if isinstance(one, NativeLinear))
        return cls(shape=shape, linears={one.handle: one for one in linears})

    @property
    def weight_bytes(self) -> int:
        """Of all products of a step."""
        return sum(part.nbytes for linear in self.linears.values() for part in linear.parts)


@dataclass(slots=True)
class Kind:
    """What the calls of one kind took together. nbytes: that they must read. products: multiplications with a sum."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    products: int = 0


@dataclass(slots=True, kw_only=True)
class StepProfile:
    """One step, medians of some replays. context: tokens of all rows. whole: of the plain replay, seconds.

    as_run: of the step itself, which the engine ran: prompts, and the first decode of so many rows, from Python.
    """

    name: str
    key: ShapeKey
    context: int
    whole: float
    kinds: dict[str, Kind]
    as_run: float = 0.0


def profile(name: str, tape: Tape, lengths: list[int], key: ShapeKey, work: Work) -> StepProfile:
    """Replay a tape that was just recorded: plainly, and call by call. lengths: of each row's context."""
    whole, rounds = [], []
    for _ in range(ROUNDS if key.is_decode else PROMPT_ROUNDS):
        whole.append(seconds(tape.replay))
        rounds.append(tape.time())
    kinds: dict[str, Kind] = defaultdict(Kind)
    for calls in zip(*rounds, strict=True):
        kind, nbytes, products = kind_of(calls[0].name, calls[0].params, work, lengths, key.is_decode)
        entry = kinds[kind]
        entry.calls += 1
        entry.seconds += statistics.median(call.seconds for call in calls)
        entry.nbytes += nbytes
        entry.products += products
    return StepProfile(name=name, key=key, context=sum(lengths), whole=statistics.median(whole), kinds=dict(kinds))


def kind_of(name: str, params: int, work: Work, lengths: list[int], is_decode: bool) -> tuple[str, int, int]:
    """(kind, bytes it must read, products) of one call of a step, whose prompts are whole ones."""
    shape = work.shape
    if name == "tenon_cpu_linear":
        call = LinearCall.from_address(params)
        linear = work.linears[call.linear]
        columns, width = linear.columns, linear.out_features
        kind = shape.kinds().get((columns, width), f"{columns} to {width}")
        products = sum(part.rows for part in linear.parts) * columns * call.tokens
        return kind, sum(part.nbytes for part in linear.parts), products
    if name == "tenon_attention":
        pairs = sum(lengths) if is_decode else sum(length * (length + 1) // 2 for length in lengths)
        nbytes = sum(lengths) * shape.kv_bytes // shape.layers if is_decode else 0
        return "attention", nbytes, pairs * shape.heads * shape.dim * 2
    return name.removeprefix("tenon_").removeprefix("cpu_"), 0, 0


@dataclass(slots=True)
class WatchedStep(Executable):
    """The step's executable, each run's time kept. wants: which steps are profiled, once each, by a name for them."""

    inner: TapeExecutable
    fn: Callable[[Any], Any]
    work: Work
    wants: dict[str, Callable[[Any], bool]] = field(default_factory=dict)
    profiles: list[StepProfile] = field(default_factory=list)
    took: list[tuple[Any, float, float]] = field(default_factory=list)  # key, start, end

    def prepare(self, key: Any, inputs: Any) -> None:
        self.inner.prepare(key, inputs)

    def release(self) -> None:
        self.inner.release()

    def run(self, key: Any, inputs: Any) -> Any:
        start = time.perf_counter()
        outputs = self.inner.run(key, inputs)
        self.took.append((key, start, time.perf_counter()))
        for name in [name for name, is_it in self.wants.items() if is_it(key)]:
            del self.wants[name]
            self.profiles.append(self._profile(name, key, inputs))
        return outputs

    def _profile(self, name: str, key: Any, inputs: Any) -> StepProfile:
        own = TapeExecutable(self.fn, name=name, refused={})
        try:
            own.record(key, inputs)
            tape = own.tape(key)
            assert tape is not None, f"{name} has an operation without a native kernel"
            found = profile(name, tape, inputs.inputs.host.seq_lens.tolist(), key, self.work)
            found.as_run = self.took[-1][2] - self.took[-1][1]
            return found
        finally:
            own.release()


class Watched(Tenon):
    """Tenon whose steps are watched. whole: seconds of each `Engine.step`."""

    def __init__(self, model: Path, *, threads: int, concurrent: int, kv: DType) -> None:
        kinds = {"gguf": "inplace", "weights": "auto", "kernels": "native"}
        dtype = DType.BFLOAT16 if model.is_dir() else DType.FLOAT32
        super().__init__(model, threads=threads, dtype=dtype, kv=kv, concurrent=concurrent, **kinds)
        runner = self.assembled.engine.executor.runner
        size = self.assembled.block_size
        kv_bytes = sum(pool.block_bytes(size) for pool in plan_pools(runner.model.groups)) // size
        work = Work.of(Shape.of(self.opened.checkpoint.config, kv_bytes))
        self.steps = WatchedStep(runner.step, runner._step, work)
        runner.step = self.steps

    def profile_decode(self, rng: np.random.Generator, rows: int) -> None:
        """A decode step of so many rows, at a context of CONTEXT tokens."""
        steps = rows * CONTEXT // 1024 + 3  # until the last prompt is there
        self.steps.wants[f"decode of {rows}"] = lambda key: key.is_decode and key.rows == rows
        self.generate(prompts_of(rng, rows, CONTEXT - steps // 2), steps)

    def profile_prompts(self, rng: np.random.Generator, prompts: int, length: int) -> None:
        """A prompt step of so many prompts, as many of them as one step takes."""
        self.steps.wants[f"{prompts} prompts of {length}"] = lambda key: not key.is_decode
        self.generate(prompts_of(rng, prompts, length), 1)


# what the threads read


def read_speeds() -> dict[str, float]:
    """Bytes a second: a plain loop that looks for the greatest of float32 numbers, and a product of one token."""
    threads = native.num_threads()
    rows, values = 8 * threads, READ_BYTES // 4 // (8 * threads)
    numbers = CPUDevice().zeros((rows, values), torch.float32).zero_()  # written: untouched pages are one page of zeros
    numbers[:, 0] = 1.0  # found first, so that the loop is all there is
    chosen = torch.zeros(rows, dtype=torch.int32)
    params = torch.zeros(rows, 13, dtype=torch.int32)

    def loop() -> None:
        kernel("sample")(logits=numbers, params=params, positions=chosen, tokens=chosen, rows=rows, vocab=values)

    columns = 2048
    weight = PackedWeight("BF16", READ_BYTES // 2 // columns, columns, numbers.view(torch.uint8).view(-1))
    product, x = NativeLinear([weight]), torch.ones(1, columns, dtype=torch.bfloat16)
    return {name: READ_BYTES / best(work) for name, work in (("loop", loop), ("product", lambda: product(x)))}


def best(work: Callable[[], Any], rounds: int = 5) -> float:
    """Seconds of the fastest of some calls, the first of which does not count."""
    work()
    return min(seconds(work) for _ in range(rounds))


def region_seconds() -> float:
    """Of a call that is split over the threads and has next to nothing to compute."""
    weight = PackedWeight("BF16", 64, 32, Slabs().take(64 * 32 * 2))
    small, x = NativeLinear([weight]), torch.ones(1, 32, dtype=torch.bfloat16)
    executable = TapeExecutable(lambda _: [small(x) for _ in range(1000)], name="regions", refused={})
    executable.record(None, None)  # type: ignore[arg-type]
    tape = executable.tape(None)  # type: ignore[arg-type]
    assert tape is not None
    found = best(tape.replay) / 1000
    executable.release()
    return found


# whole runs


@dataclass(slots=True, kw_only=True)
class Run:
    """So many requests at once. parts: name: (steps, seconds). step, outside: medians of a decode step of all rows."""

    requests: int
    seconds: float
    parts: dict[str, tuple[int, float]]
    step: float
    outside: float


def whole_run(engine: Watched, rng: np.random.Generator, requests: int) -> Run:
    """Requests of PROMPT tokens in and OUTPUT out, all there from the start."""
    engine.steps.took.clear()
    prompts = prompts_of(rng, requests, PROMPT)
    whole = seconds(lambda: engine.generate(prompts, OUTPUT))
    parts: dict[str, tuple[int, float]] = {}
    steps, full, gaps = engine.steps.took, [], []
    for (key, start, end), after in zip(steps, [*steps[1:], None], strict=True):
        all_rows = key.is_decode and key.rows == requests
        name = "decode, all rows" if all_rows else "decode, fewer rows" if key.is_decode else prompt_step(key)
        count, total = parts.get(name, (0, 0.0))
        parts[name] = (count + 1, total + end - start)
        if all_rows and after is not None:
            full.append(end - start)
            gaps.append(after[1] - end)
    parts["outside"] = (len(steps), whole - sum(end - start for _, start, end in steps))
    step, outside = statistics.median(full), statistics.median(gaps)
    return Run(requests=requests, seconds=whole, parts=parts, step=step, outside=outside)


def prompt_step(key: ShapeKey) -> str:
    """Of a step with prompts: prompts alone, or rows that decode beside them."""
    return "prompts" if key.tokens >= PROMPT * (key.rows - 1) else "prompts and decodes"


def step_floor(work: Work, requests: int, memory_speed: float) -> float:
    """Seconds that weights and KV of a decode step take, at the mean context of a run."""
    return (work.weight_bytes + requests * (PROMPT + OUTPUT / 2) * work.shape.kv_bytes) / memory_speed


def limit(requests: int, floor: float, prefill_speed: float) -> float:
    """Tokens a second that bytes allow: prompts at the measured speed, then steps of `floor` seconds."""
    return requests * OUTPUT / (requests * PROMPT / prefill_speed + (OUTPUT - 1) * floor)


# text


def machine() -> list[str]:
    """What the figures depend on."""

    def text(path: str) -> str:
        file = Path(path)
        return file.read_text().strip() if file.is_file() else "?"

    models = [
        line.split(":")[1].strip() for line in text("/proc/cpuinfo").splitlines() if line.startswith("model name")
    ]
    cores = sorted(os.sched_getaffinity(0))
    siblings = {text(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in cores}
    caches = [text(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size") for index in range(4)]
    rollup = text("/proc/self/smaps_rollup").splitlines()
    huge = next((line.split(":")[1].strip() for line in rollup if line.startswith("AnonHugePages")), "?")
    return [
        f"cpu {models[0] if models else '?'}  isa {native.current_isa()}  threads {native.num_threads()}  cores {cores}"
        f"  siblings {sorted(siblings)}  caches {caches}",
        f"transparent huge pages {text('/sys/kernel/mm/transparent_hugepage/enabled')}, held {huge}"
        f"  load {os.getloadavg()[0]:.1f}  torch {torch.__version__}  library {source_hash()}",
    ]


def source_hash() -> str:
    """The first digits of what the library says it was built from."""
    loaded = native.library()
    assert loaded is not None
    loaded.tenon_cpu_sources.restype = ctypes.c_char_p
    return str(loaded.tenon_cpu_sources().decode()[:12])


def table(step: StepProfile, memory_speed: float) -> list[str]:
    """A step's kinds, the slowest first."""
    total = sum(kind.seconds for kind in step.kinds.values())
    nbytes = sum(kind.nbytes for kind in step.kinds.values())
    is_decode, tokens = step.key.is_decode, step.key.tokens
    lines = [f"{step.name}: {tokens} tokens, context {step.context}, replay {step.whole * 1e3:.2f} ms, call by call"
             f" {total * 1e3:.2f} ms, as it ran {step.as_run * 1e3:.2f} ms"]  # fmt: skip
    for name, kind in sorted(step.kinds.items(), key=lambda item: -item[1].seconds):
        each = kind.seconds / kind.calls
        line = f"  {name:20} {kind.calls:4} calls {kind.seconds * 1e3:9.3f} ms {each * 1e6:9.1f} us each"
        if is_decode and kind.nbytes:
            floor = kind.nbytes / memory_speed
            line += f" {kind.nbytes / 1e6:7.1f} MB {kind.nbytes / kind.seconds / 1e9:6.1f} GB/s"
            line += f"  floor {floor * 1e3:6.3f}  over {(kind.seconds - floor) * 1e3:6.3f} ms"
        elif kind.products:
            line += f" {2 * kind.products / kind.seconds / 1e9:8.0f} GFLOP/s"
        lines.append(line)
    if is_decode:
        floor = nbytes / memory_speed
        share, speed = floor / step.whole, nbytes / step.whole / 1e9
        lines.append(
            f"  together {nbytes / 1e6:.1f} MB, {speed:.1f} GB/s, floor {floor * 1e3:.2f} ms, {share:.0%} of it"
        )
    else:
        products = sum(kind.products for kind in step.kinds.values())
        lines.append(f"  together {tokens / step.whole:.0f} tokens/s, {2 * products / step.whole / 1e9:.0f} GFLOP/s")
    return lines


def run_lines(run: Run, floor: float, bound: float) -> list[str]:
    """How a run's seconds divide."""
    speed = run.requests * OUTPUT / run.seconds
    lines = [f"{run.requests} requests, {PROMPT} in {OUTPUT} out: {run.seconds:.3f} s, {speed:.0f} tok/s,"
             f" {speed / bound:.0%} of the limit of {bound:.0f}"]  # fmt: skip
    step = f"kernels {run.step * 1e3:.2f} ms, outside {run.outside * 1e3:.2f} ms, bytes {floor * 1e3:.2f} ms"
    lines.append(f"  a decode step of {run.requests}, medians: {step}")
    for name, (count, spent) in run.parts.items():
        lines.append(
            f"  {name:22} {count:4} steps {spent:7.3f} s {spent / count * 1e3:9.3f} ms each {spent / run.seconds:6.1%}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of safetensors, or a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,16,32", help="decode steps to take apart, comma-separated")
    parser.add_argument("--prompts", default="1x512,16x128", help="prompt steps to take apart: prompts x tokens")
    parser.add_argument("--requests", default="16,32", help="whole runs, comma-separated; empty: none")
    parser.add_argument("--repeat", type=int, default=2, help="whole runs of each number of requests")
    parser.add_argument("--kv", default="bfloat16", help="the cache's dtype")
    args = parser.parse_args()
    rows, requests = ([int(one) for one in text.split(",") if one] for text in (args.rows, args.requests))
    rng = np.random.default_rng(0)
    with torch.inference_mode():
        engine = Watched(args.model, threads=args.threads, concurrent=max([*rows, *requests, 1]), kv=DType(args.kv))
        engine.generate(prompts_of(rng, 2, 16), 4)  # warm up
        reads, region = read_speeds(), region_seconds()
        memory_speed = max(reads.values())
        print("\n".join(machine()))
        print("reads " + "  ".join(f"{name} {speed / 1e9:.1f} GB/s" for name, speed in reads.items()), end="  ")
        print(f"a call split over the threads, nothing to compute: {region * 1e6:.2f} us", flush=True)
        for count in rows:
            engine.profile_decode(rng, count)
        for count, length in (map(int, text.split("x")) for text in args.prompts.split(",") if text):
            engine.profile_prompts(rng, count, length)
        for step in engine.steps.profiles:
            print("\n".join(table(step, memory_speed)), flush=True)
        work = engine.steps.work
        long = [prompts_of(rng, 1, PREFILL) for _ in range(3)]
        prefill = PREFILL / statistics.median(seconds(lambda one=one: engine.generate(one, 1)) for one in long)
        print(f"a prompt of {PREFILL}: {prefill:.0f} tokens/s")
        for count in requests:
            for _ in range(args.repeat):
                floor = step_floor(work, count, memory_speed)
                bound = limit(count, floor, prefill)
                print("\n".join(run_lines(whole_run(engine, rng, count), floor, bound)), flush=True)


if __name__ == "__main__":
    main()
