"""The Triton attention kernels on a GPU: right in bfloat16 first, then timed at models' shapes in many configurations.

    python benchmarks/triton_attention.py [--only check,decode,prefill] [--quick] [--seconds 500] [--json FILE]

Every time is of a captured graph over as many layers as overflow the caches, each with its own KV, divided by their
number. Tables give the share of what the device can do: bytes of the context read once for decodes, FLOPs of what is
visible for prefills. `--bandwidth` (TB/s) and `--flops` (TFLOP/s) say what that is. Kernels are compiled by `--jobs`
processes first. Needs no installed package of ours: it finds the sources beside itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platforms" / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugins" / "triton" / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugins" / "cuda" / "src"))

import numpy as np
import torch
import torch.nn.attention
from torch import Tensor

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops.warpgroups import WarpgroupPrompts
from tenon_platforms.batch import AttentionBatch, GQAInputs, HostBatch
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.shapes import ShapeKey
from tenon_triton.attention import AttentionConfigs, DecodeConfig, TileConfig, TritonAttention
from tenon_triton.attention.configs import attention_configs
from tenon_triton.facts import DeviceFacts

PAGE = 64
LONG_PROMPTS = WarpgroupPrompts(Arch(*torch.cuda.get_device_capability())) if torch.cuda.is_available() else None
COLD_BYTES = 400 * 2**20  # of KV a graph walks through: several times the last-level cache
HEADS = {"llama-8b": (32, 8, 128), "qwen3-0.6b": (16, 8, 128)}
Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """rows: (tokens of the step, length with them)."""

    name: str
    model: str
    rows: tuple[tuple[int, int], ...]

    @property
    def is_decode(self) -> bool:
        return all(count == 1 for count, _ in self.rows)


def spread(count: int, low: int, high: int) -> tuple[tuple[int, int], ...]:
    """Decodes of `count` lengths between, in random order, the same at every run."""
    lengths = np.random.default_rng(0).permutation(np.linspace(low, high, count).astype(int))
    return tuple((1, int(length)) for length in lengths)


def decode_shapes(quick: bool) -> list[Shape]:
    sizes = [(1, 300), (1, 4000), (16, 256), (16, 4000), (64, 3532), (256, 1000), (512, 640), (1024, 200)]
    sizes = [(1, 300), (16, 256), (64, 3532), (512, 640), (1024, 200)] if quick else sizes
    shapes = []
    for model in HEADS:
        for rows, length in sizes:
            shapes.append(Shape(f"{rows} x {length}", model, ((1, length),) * rows))
        shapes.append(Shape("256 x 100-2000", model, spread(256, 100, 2000)))
    return shapes


def prefill_shapes(quick: bool) -> list[Shape]:
    sizes = {
        "1 x 8192": ((8192, 8192),),
        "16 x 512": ((512, 512),) * 16,
        "2 x 3500": ((3500, 3500),) * 2,
        "64 x 128": ((128, 128),) * 64,
        "2048 after 6144": ((2048, 8192),),
        "mixed 256 x 1000 + 2 x 2048": (*((1, 1000),) * 256, *((2048, 2048),) * 2),
    }
    return [
        Shape(name, model, rows)
        for model in HEADS
        for name, rows in sizes.items()
        if not quick or (model == "llama-8b" and name in ("1 x 8192", "16 x 512"))
    ]


def spec_of(model: str, **fields: Any) -> AttentionSpec:
    heads, kv_heads, dim = HEADS[model] if isinstance(model, str) else model
    given: dict[str, Any] = {"dtype": DType.BFLOAT16, "kv_dtype": DType.BFLOAT16, "scale": dim**-0.5, **fields}
    return AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, **given)


def facts() -> DeviceFacts:
    held = torch.cuda.get_device_properties(0)
    return DeviceFacts(
        compute_units=held.multi_processor_count,
        shared_bytes=held.shared_memory_per_block_optin,
        fp8=held.major >= 9,
    )


def device() -> Device:
    return Device(torch_device=torch.device("cuda", 0), is_async=True)


class Bench:
    """Caches and inputs of one shape, and a backend with any configuration on them."""

    def __init__(self, spec: AttentionSpec, rows: Sequence[tuple[int, int]], page: int = PAGE, layers: int = 0) -> None:
        self.spec, self.page = spec, page
        counts, lengths = [c for c, _ in rows], [n for _, n in rows]
        blocks = [-(-n // page) for n in lengths]
        width, total = max(blocks), sum(blocks) + 1
        order = torch.randperm(total - 1) + 1
        table = torch.zeros(len(rows) + 1, width, dtype=torch.int32)
        start = 0
        for row, count in enumerate(blocks):
            table[row, :count] = order[start : start + count]
            start += count
        backend = self.backend(None)
        layer_bytes = backend.layout.block_bytes(page) * total
        self.layers = layers or max(1, min(32, math.ceil(COLD_BYTES / layer_bytes)))
        generator = torch.Generator("cuda").manual_seed(1)
        self.caches = backend.allocate(total, page, self.layers)
        for cache in self.caches:
            for part in cache.split(max(1, 2**28 // cache[0].numel())):
                part.copy_(torch.randn(part.shape, generator=generator, device="cuda", dtype=torch.float16))
            cache[0] = 0
            for row, length in enumerate(lengths):  # what nobody has written yet
                if length % page:
                    cache[table[row, blocks[row] - 1], :, :, length % page :] = float("nan")
        tokens, heads, dim = sum(counts), spec.num_heads, spec.head_dim
        self.queries = [
            torch.randn(tokens, heads, dim, generator=generator, device="cuda").to(torch.bfloat16)
            for _ in range(self.layers)
        ]
        self.sinks = torch.randn(heads, generator=generator, device="cuda") if spec.sinks else None
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        decodes = next((i for i, q in enumerate(counts) if q != 1), len(counts))
        key = ShapeKey(
            tokens=tokens,
            rows=len(rows),
            logits=len(rows),
            max_query=max(counts),
            blocks=width,
            static=max(counts) == 1,
        )
        on = lambda values: torch.as_tensor(np.asarray(values, dtype=np.int32)).cuda()  # noqa: E731
        self.batch = AttentionBatch(
            block_table=table.cuda(),
            block_size=page,
            rows=on(np.arange(len(rows))),
            query_starts=on(starts),
            seq_lens=on(lengths),
            token_rows=on(np.repeat(np.arange(len(rows)), counts)),
            positions=on([[p for q, n in rows for p in range(n - q, n)]]),
            num_valid=on([tokens, len(rows), len(rows)]),
            key=key,
            host=HostBatch(
                num_tokens=tokens,
                num_rows=len(rows),
                num_logits=len(rows),
                num_decodes=decodes,
                query_lens=np.array(counts, dtype=np.int32),
                seq_lens=np.array(lengths, dtype=np.int32),
                max_query=max(counts),
                max_seq=max(lengths),
            ),
        )
        group_bytes = 2 * spec.num_kv_heads * dim * spec.kv_dtype.num_bytes
        self.bytes = sum(lengths) * group_bytes + 2 * tokens * heads * dim * 2
        self.flops = 4 * heads * dim * sum(q * (n - q) + q * (q + 1) // 2 for q, n in rows)

    def backend(self, configs: AttentionConfigs | None, **options: Any) -> TritonAttention:
        return TritonAttention(self.spec, device(), facts(), configs=configs, **options)

    def run_layer(self, backend: TritonAttention) -> Tensor:
        return self.run_planned(backend, backend.plan(self.batch), 0)

    def run_planned(self, backend: TritonAttention, plan: Any, layer: int) -> Tensor:
        return backend.run(GQAInputs(query=self.queries[layer], cache=self.caches[layer], sinks=self.sinks), plan)

    def microseconds(self, run: Callable[[int], Any]) -> float:
        """Of one layer, the median of captured runs over all layers."""
        run(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for layer in range(self.layers):
                run(layer)
        times = []
        for index in range(7):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if index > 1:
                times.append(begin.elapsed_time(end) * 1000 / self.layers)
        return statistics.median(times)

    def truth(self) -> Tensor:
        """Layer 0 in float32, a row at a time."""
        spec, batch, outputs = self.spec, self.batch, []
        group = spec.num_heads // spec.num_kv_heads
        starts, lengths = batch.query_starts.tolist(), batch.seq_lens.tolist()
        for row, length in enumerate(lengths):
            q = self.queries[0][starts[row] : starts[row + 1]].float()
            held = self.caches[0][batch.block_table[row, : -(-length // self.page)].long()].float()
            k, v = (part.transpose(1, 2).flatten(0, 1)[:length] for part in held.unbind(1))
            k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
            scores = torch.einsum("qhd,lhd->hql", q, k) * spec.scale
            if spec.soft_cap:
                scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
            place = torch.arange(length, device="cuda")
            at = torch.arange(length - len(q), length, device="cuda")[:, None]
            visible = place <= at if spec.causal else place <= length
            if spec.sliding_window:
                visible = visible & (place > at - spec.sliding_window)
            scores = scores.masked_fill(~visible, float("-inf"))
            if self.sinks is not None:
                extra = self.sinks[:, None, None].expand(-1, len(q), 1)
                scores = torch.cat((scores, extra), -1)
            weights = scores.softmax(-1)[..., :length]
            outputs.append(torch.einsum("hql,lhd->qhd", weights, v))
        return torch.cat(outputs)


# numerics

CHECKS: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "llama 32/8/128": ((32, 8, 128), {}),
    "qwen 16/8/128": ((16, 8, 128), {}),
    "mha 8/8/64": ((8, 8, 64), {}),
    "mqa 24/1/64": ((24, 1, 64), {}),
    "dim 80": ((8, 8, 80), {}),
    "dim 96 bidirectional": ((8, 4, 96), {"causal": False}),
    "gemma 8/4/256": ((8, 4, 256), {"sliding_window": 200, "soft_cap": 30.0}),
    "oss 64/8/64": ((64, 8, 64), {"sliding_window": 128, "sinks": True}),
    "fp8 kv": ((32, 8, 128), {"kv_dtype": DType.FLOAT8_E4M3}),
}
CHECK_ROWS: dict[str, tuple[tuple[int, int], ...]] = {
    "decode": tuple((1, n) for n in (1, 15, 64, 65, 333, 1000, 2049)),
    "few": tuple((2, n) for n in (2, 64, 500)),
    "mixed": ((1, 700), (1, 64), (1, 5), (300, 300), (17, 400), (128, 128), (5, 2000)),
    "many decodes": spread(96, 1, 900),
}


def check(results: list[Row]) -> bool:
    """bfloat16 against float32, and a captured run against an eager one at other lengths."""
    right = True
    print(f"\n{'numerics':24}{'batch':16}{'page':>5}{'max error':>12}{'bound':>9}")
    for name, (heads, fields) in CHECKS.items():
        if fields.get("kv_dtype") == DType.FLOAT8_E4M3 and not facts().fp8:
            continue
        spec = spec_of(heads, **fields)  # type: ignore[arg-type]
        for label, rows in CHECK_ROWS.items():
            for page in (16, 64) if name.startswith(("llama", "oss")) else (64,):
                bench = Bench(spec, rows, page, layers=1)
                wanted = bench.truth()
                for join in (True, False):
                    backend = bench.backend(None)
                    decode = replace(backend.configs.decode, join=join, tail=not join)
                    backend.configs = replace(backend.configs, decode=decode)
                    backend.long_prompts = LONG_PROMPTS if join else None
                    worst = max(float((bench.run_layer(backend).float() - wanted).abs().max()) for _ in range(3))
                    bound = 0.02 * max(1.0, float(wanted.abs().max()) / 2)
                    right &= worst < bound
                    mark = "" if worst < bound else "   WRONG"
                    way = "" if join else " two launches, no warp groups"
                    print(f"{name:24}{label:16}{page:5}{worst:12.5f}{bound:9.3f}{way}{mark}")
                    results.append({"kind": "check", "name": name, "batch": label, "error": worst, "bound": bound})
    right &= check_replay(results)
    return right


def check_replay(results: list[Row]) -> bool:
    """A graph captured at length 1 serves other lengths: bitwise what an eager launch gives."""
    bench = Bench(spec_of("llama-8b"), tuple((1, n) for n in (2000, 900, 64, 3, 1500, 128, 129, 1)), layers=1)
    backend = bench.backend(None)
    lengths = bench.batch.seq_lens.clone()
    plan = backend.plan(bench.batch)
    inputs = GQAInputs(query=bench.queries[0], cache=bench.caches[0])
    bench.batch.seq_lens.fill_(1)
    backend.run(inputs, plan)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = backend.run(inputs, plan)
    right = True
    for shift in (0, 1, 3):
        bench.batch.seq_lens.copy_(lengths.roll(shift).minimum(lengths))
        graph.replay()
        replayed = output.clone()
        right &= torch.equal(replayed, backend.run(inputs, backend.update(plan, bench.batch)))
    print(f"replay equals eager: {right}")
    results.append({"kind": "replay", "right": right})
    return right


# configurations


def decode_configs(base: DecodeConfig, quick: bool) -> Iterator[tuple[str, DecodeConfig]]:
    """Tiles, warps and stages together; then everything else, one by one."""
    for tile in (32, 64, 128):
        for warps in (2, 4, 8) if tile > 32 else (1, 2, 4):
            for stages in (2, 3, 4):
                if tile * stages <= 384 and not (quick and (stages == 4 or warps in (1, 8))):
                    yield f"t{tile} w{warps} s{stages}", replace(base, tile=tile, warps=warps, stages=stages)
    for name, change in {
        "tail": {"tail": not base.tail},
        "join": {"join": not base.join},
        "programs 2": {"programs_per_unit": 2},
        "programs 4": {"programs_per_unit": 4},
        "programs 16": {"programs_per_unit": 16},
        "programs 32": {"programs_per_unit": 32},
        "min 64": {"min_tokens": 64},
        "min 256": {"min_tokens": 256},
        "min 512": {"min_tokens": 512},
    }.items():
        yield name, replace(base, **change)


def prefill_configs(base: TileConfig, quick: bool) -> Iterator[tuple[str, TileConfig]]:
    for rows in (64, 128, 256):
        for tile in (32, 64, 128):
            for warps in (4, 8):
                for stages in (2, 3, 4):
                    shared = rows * 256 + stages * tile * 512
                    bad = shared > 226 * 1024 or (rows == 256 and warps == 4) or (rows == 64 and warps == 8)
                    if not bad and not (quick and (tile == 32 or rows == 256 or stages == 4)):
                        name = f"m{rows} t{tile} w{warps} s{stages}"
                        yield name, replace(base, block_rows=rows, tile=tile, warps=warps, stages=stages)


def configs_of(shape: Shape, quick: bool, defaults: bool = False) -> list[tuple[str, AttentionConfigs]]:
    spec = spec_of(shape.model)
    base = attention_configs(spec.head_dim, spec.num_heads // spec.num_kv_heads, 2, 2, facts())
    found = [("default", base)]
    if defaults:
        return found if shape.is_decode else [*found, ("plain default", base)]
    if shape.is_decode:
        found += [(name, replace(base, decode=one)) for name, one in decode_configs(base.decode, quick)]
    else:
        found.append(("plain default", base))
        found += [(name, replace(base, long=one)) for name, one in prefill_configs(base.long, quick)]
    return found


def compile_all(kinds: Sequence[str], quick: bool, jobs: int) -> None:
    """Fill the kernel cache with `jobs` processes."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--only", ",".join(kinds), *(["--quick"] if quick else [])]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([*command, "--compile", f"{i}/{jobs}"], env=env) for i in range(jobs)]
    for worker in workers:
        worker.wait()
    print(f"compiled by {jobs} processes in {time.monotonic() - began:.0f} s", flush=True)


def compile_part(kinds: Sequence[str], quick: bool, part: str) -> None:
    """Every jobs-th configuration of each model, on a tiny batch with the same constants."""
    index, jobs = map(int, part.split("/"))
    shapes = (decode_shapes(quick) if "decode" in kinds else []) + (prefill_shapes(quick) if "prefill" in kinds else [])
    seen: dict[tuple[str, bool], Shape] = {}
    for shape in shapes:
        seen.setdefault((shape.model, shape.is_decode), shape)
    work = [(shape, configs) for shape in seen.values() for _, configs in configs_of(shape, quick)]
    for shape, configs in work[index::jobs]:
        rows = ((1, 64), (1, 64)) if shape.is_decode else ((64, 64),)
        bench = Bench(spec_of(shape.model), rows, layers=1)
        try:
            bench.run_layer(bench.backend(configs))
        except Exception as error:  # noqa: BLE001  a configuration that does not fit is told when it is timed
            print(f"not compiled: {type(error).__name__} {str(error)[:90]}", flush=True)


# times


def measure(shapes: list[Shape], quick: bool, limits: argparse.Namespace, results: list[Row], deadline: float) -> None:
    for shape in shapes:
        if time.monotonic() > deadline:
            print("out of time: the rest is left out")
            return
        bench = Bench(spec_of(shape.model), shape.rows)
        plain = bench.backend(None)
        wanted = bench.run_layer(plain).float()
        lines = []
        for name, configs in configs_of(shape, quick, limits.defaults):
            try:
                backend = bench.backend(configs)
                backend.long_prompts = LONG_PROMPTS if name == "default" else None
                plan = backend.plan(bench.batch)
                error = float((bench.run_layer(backend).float() - wanted).abs().max())
                took = bench.microseconds(partial(bench.run_planned, backend, plan))
            except Exception as problem:  # noqa: BLE001  out of shared memory, out of registers: the others go on
                print(f"  {shape.model} {shape.name} {name}: {type(problem).__name__} {str(problem)[:80]}")
                continue
            lines.append((took, name, error))
        took = library_time(bench, shape)
        if took:
            lines.append((took, "torch SDPA", 0.0))
        report(bench, shape, lines, limits, results)
        del bench
        torch.cuda.empty_cache()


def library_time(bench: Bench, shape: Shape) -> float | None:
    """torch's flash attention on contiguous inputs of the same size: equal prompts only."""
    if shape.is_decode or len(set(shape.rows)) != 1 or shape.rows[0][0] != shape.rows[0][1]:
        return None
    spec, (count, _), rows = bench.spec, shape.rows[0], len(shape.rows)
    q = torch.randn(rows, spec.num_heads, count, spec.head_dim, device="cuda", dtype=torch.bfloat16)
    k, v = (
        torch.randn(rows, spec.num_kv_heads, count, spec.head_dim, device="cuda", dtype=torch.bfloat16)
        for _ in range(2)
    )
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return bench.microseconds(lambda _: sdpa(q, k, v, is_causal=True, enable_gqa=True))


def report(
    bench: Bench, shape: Shape, lines: list[tuple[float, str, float]], limits: argparse.Namespace, results: list[Row]
) -> None:
    """The default and the best few of a shape."""

    def share(took: float) -> tuple[float, float]:
        rate = bench.bytes / took / 1e6 if shape.is_decode else bench.flops / took / 1e6
        return rate, rate / (limits.bandwidth if shape.is_decode else limits.flops)

    unit = "TB/s" if shape.is_decode else "TFLOP/s"
    sizes = f"{bench.layers} layers, {bench.bytes / 1e6:.1f} MB, {bench.flops / 1e9:.1f} GFLOP each"
    print(f"\n{shape.model}  {shape.name}  ({sizes})")
    ordered = sorted(lines)
    shown = ordered[:6] + [
        line for line in ordered[6:] if line[1] in ("default", "plain default", "torch SDPA", "join", "tail")
    ]
    for took, name, error in shown:
        rate, part = share(took)
        wrong = "" if error < 0.03 else f"   DIFFERS by {error:.3f}"
        print(f"  {name:16}{took:10.1f} us{rate:9.2f} {unit}{part:8.1%}{wrong}", flush=True)
    for took, name, error in lines:
        rate, part = share(took)
        results.append(
            {"kind": unit, "model": shape.model, "shape": shape.name, "config": name, "us": took, "rate": rate,
             "share": part, "error": error}
        )  # fmt: skip


def summary(results: list[Row]) -> None:
    """Per model and kind, configurations by the geometric mean of their shares, over shapes that all were timed at."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in results:
        if "share" in row:
            groups.setdefault((row["kind"], row["model"]), {}).setdefault(row["config"], []).append(row["share"])
    for (unit, model), configs in groups.items():
        most = max(map(len, configs.values()))
        whole = {name: held for name, held in configs.items() if len(held) == most}
        means = {name: math.exp(statistics.fmean(map(math.log, held))) for name, held in whole.items()}
        print(f"\n{model}, {unit}: mean share of the limit over {most} shapes")
        for name, mean in sorted(means.items(), key=lambda item: -item[1])[:8]:
            print(f"  {name:16}{mean:8.1%}")
        if "default" in means:
            print(f"  {'default':16}{means['default']:8.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="check,decode,prefill")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and configurations")
    parser.add_argument("--defaults", action="store_true", help="only the table's configurations")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bandwidth", type=float, default=4.3)
    parser.add_argument("--flops", type=float, default=790.0)
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    given = parser.parse_args()
    kinds = given.only.split(",")
    torch.manual_seed(0)
    if given.compile:
        compile_part(kinds, given.quick, given.compile)
        return 0
    deadline = time.monotonic() + given.seconds
    import triton

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, {facts()}")
    results: list[Row] = []
    timed = [kind for kind in kinds if kind != "check"]
    if timed and given.jobs > 1 and not given.defaults:
        compile_all(timed, given.quick, given.jobs)
    right = check(results) if "check" in kinds else True
    if "decode" in kinds:
        measure(decode_shapes(given.quick), given.quick, given, results, deadline)
    if "prefill" in kinds:
        measure(prefill_shapes(given.quick), given.quick, given, results, deadline)
    summary(results)
    if given.json:
        given.json.write_text("\n".join(map(json.dumps, results)) + "\n")
    print(f"\nnumerics: {'right' if right else 'WRONG'}; {given.seconds - (deadline - time.monotonic()):.0f} s")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
