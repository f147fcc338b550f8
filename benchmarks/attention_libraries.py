"""Attention's libraries beside our kernels on a GPU: right against float64 first, then timed, on one paged cache.

    python benchmarks/attention_libraries.py [--models llama-8b,qwen3-0.6b] [--kernels fa2,fa3] [--json FILE]

Prompts go through `tenon_cuda.ops.flashinfer` and `flash_attention` as the platform would send them; decodes call the
libraries directly, since the platform captures its own. A time is of one layer in a captured graph over as many as
overflow the caches; `plan` is the host's time a step. A library that is not installed is left out, and said so. The
last lines say where one is faster than the best of ours: what `tenon_cuda.ops.prompt_table` may say.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_attention as ours  # finds the sources beside itself
from torch import Tensor
from triton_attention import Bench, Shape

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops import flash_attention, flashinfer
from tenon_cuda.ops.flash_attention import EDITIONS, FlashAttentionPrompts, Rows
from tenon_cuda.ops.flashinfer import FlashInferPrompts
from tenon_platforms.kernel import No
from tenon_platforms.torch_dtypes import to_torch
from tenon_triton.attention.long_prompts import LongPrompts

PROMPTS: dict[str, tuple[tuple[int, int], ...]] = {
    "1 x 8192": ((8192, 8192),),
    "2 x 3500": ((3500, 3500),) * 2,
    "2048 after 6144": ((2048, 8192),),
    "16 x 128": ((128, 128),) * 16,
}
DECODES: dict[str, tuple[tuple[int, int], ...]] = {
    "64 x 1024": ((1, 1024),) * 64,
    "256 x 600": ((1, 600),) * 256,
}
KERNELS = {"fa3": Arch(9, 0), "fa2": Arch(8, 0)}
OURS = ("triton", "warp groups")
QUERIES = 512  # at a time in float64
FASTER = 0.97  # of the time of our best: less is noise


@dataclass(frozen=True)
class Way:
    """run(layer) -> [tokens, heads, dim]; plan(): the host's part of a step."""

    name: str
    plan: Callable[[], Any]
    run: Callable[[Any, int], Tensor]


def truth(bench: Bench) -> Tensor:
    """Layer 0 in float64, some queries of a row at a time."""
    spec, batch, outputs = bench.spec, bench.batch, []
    group = spec.num_heads // spec.num_kv_heads
    starts, lengths = batch.query_starts.tolist(), batch.seq_lens.tolist()
    for row, length in enumerate(lengths):
        held = bench.caches[0][batch.block_table[row, : -(-length // bench.page)].long()].double()
        keys, values = (part.transpose(1, 2).flatten(0, 1)[:length] for part in held.unbind(1))
        place = torch.arange(length, device=keys.device)
        before = length - (starts[row + 1] - starts[row])
        for first in range(starts[row], starts[row + 1], QUERIES):
            query = bench.queries[0][first : min(first + QUERIES, starts[row + 1])].double()
            query = query.unflatten(1, (spec.num_kv_heads, group))
            at = before + first - starts[row] + torch.arange(len(query), device=keys.device)
            scores = torch.einsum("qkgd,lkd->kgql", query, keys) * spec.scale
            weights = scores.masked_fill(place > at[:, None], float("-inf")).softmax(-1)
            outputs.append(torch.einsum("kgql,lkd->qkgd", weights, values).flatten(1, 2))
    return torch.cat(outputs)


def libraries(bench: Bench, kernels: list[str]) -> Iterator[tuple[str, LongPrompts]]:
    """Those that are installed; kernels: of FlashInfer, which the platform takes by architecture."""
    arch = Arch(*torch.cuda.get_device_capability())
    if flashinfer.refused(bench.spec, arch) is None:
        for name in kernels:
            kind, units = KERNELS[name], ours.facts().compute_units
            prompts = FlashInferPrompts(spec=bench.spec, device=ours.device(), arch=kind, compute_units=units)
            yield f"flashinfer {name}", prompts
    for edition in EDITIONS:
        is_for_us = arch.major in edition.majors and edition.takes(bench.page)
        if is_for_us and edition.library.missing() is None:
            yield (
                edition.library.distribution,
                FlashAttentionPrompts(spec=bench.spec, edition=edition, device=ours.device()),
            )


def prompt_ways(bench: Bench, kernels: list[str]) -> Iterator[Way]:
    def through(name: str, prompts: LongPrompts | None) -> Way:
        backend = bench.backend(None, long_prompts=prompts)

        def run(plan: Any, layer: int) -> Tensor:
            return bench.run_planned(backend, plan, layer)

        return Way(name, lambda: backend.plan(bench.batch), run)

    yield through("triton", None)
    if ours.LONG_PROMPTS is not None and ours.LONG_PROMPTS.takes(bench.spec, bench.page):
        yield through("warp groups", ours.LONG_PROMPTS)
    for name, prompts in libraries(bench, kernels):
        yield through(name, prompts)


def decode_ways(bench: Bench) -> Iterator[Way]:
    backend = bench.backend(None)
    yield Way("triton", lambda: backend.plan(bench.batch), lambda plan, layer: bench.run_planned(backend, plan, layer))
    arch = Arch(*torch.cuda.get_device_capability())
    if flashinfer.refused(bench.spec, arch) is None:
        yield flashinfer_decode(bench)
    edition = flash_attention.edition_for(arch)
    if not isinstance(edition, No) and edition.takes(bench.page):
        yield flash_attention_decode(bench, edition)


def flashinfer_decode(bench: Bench) -> Way:
    """Its decode wrapper, products on the matrix units."""
    spec, batch = bench.spec, bench.batch
    library = importlib.import_module("flashinfer")
    space = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(space, kv_layout="HND", use_tensor_cores=True, backend="fa2")
    lengths = batch.host.seq_lens
    counts = -(-lengths // bench.page)
    output = torch.empty_like(bench.queries[0])

    def plan() -> Any:
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        blocks = torch.cat([batch.block_table[row, :count] for row, count in enumerate(counts.tolist())])
        wrapper.plan(
            torch.from_numpy(starts),
            blocks,
            torch.from_numpy((lengths - (counts - 1) * bench.page).astype(np.int32)),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            bench.page,
            q_data_type=to_torch(spec.dtype),
            kv_data_type=to_torch(spec.kv_dtype),
            sm_scale=spec.scale,
        )
        return wrapper

    def run(planned: Any, layer: int) -> Tensor:
        result: Tensor = planned.run(bench.queries[layer], bench.caches[layer], out=output, enable_pdl=False)
        return result

    return Way("flashinfer", plan, run)


def flash_attention_decode(bench: Bench, edition: flash_attention.Edition) -> Way:
    batch = bench.batch
    function = getattr(importlib.import_module(edition.library.module), edition.function)
    rows = batch.host.num_rows

    def plan() -> Rows:
        return Rows(
            starts=batch.query_starts[: rows + 1],
            lengths=batch.seq_lens[:rows],
            table=batch.block_table[batch.rows.long()],
            longest=1,
            longest_context=batch.host.max_seq,
        )

    def run(told: Rows, layer: int) -> Tensor:
        keys, values = (part.transpose(1, 2) for part in bench.caches[layer].unbind(1))
        return edition.call(function, bench.queries[layer], keys, values, told, bench.spec)

    return Way(edition.library.distribution, plan, run)


def planning(way: Way) -> float:
    """Microseconds of the host, the median of a few."""
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        way.plan()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def measure(shape: Shape, ways: Callable[[Bench], Iterator[Way]], results: list[dict[str, Any]]) -> bool:
    """One line a way; whether all ran and are right."""
    bench = Bench(ours.spec_of(shape.model), shape.rows)
    wanted, right = truth(bench), True
    bound = 0.02 * max(1.0, float(wanted.abs().max()) / 2)
    sizes = f"{bench.layers} layers, {bench.bytes / 1e6:.1f} MB, {bench.flops / 1e9:.1f} GFLOP each"
    print(f"\n{shape.model}  {shape.name}  ({sizes}; errors below {bound:.3f})")
    asked = ways(bench)
    while True:
        try:
            way = next(asked, None)
            if way is None:
                break
            plan = way.plan()
            error = float((way.run(plan, 0).double() - wanted).abs().max())
            took = bench.microseconds(lambda layer, way=way, plan=plan: way.run(plan, layer))  # type: ignore[misc]
            host = planning(way)
        except Exception as problem:  # noqa: BLE001  one that does not run here: the others go on
            right = False
            print(f"  {type(problem).__name__}: {str(problem)[:400]}", flush=True)
            continue
        right &= error < bound
        rate = bench.bytes / took / 1e6 if shape.is_decode else bench.flops / took / 1e6
        unit, mark = "TB/s" if shape.is_decode else "TFLOP/s", "" if error < bound else "   WRONG"
        numbers = f"{took:10.1f} us{rate:9.2f} {unit:7}  plan {host:7.1f} us  error {error:.5f}{mark}"
        print(f"  {way.name:16}{numbers}", flush=True)
        results.append(
            {"model": shape.model, "shape": shape.name, "way": way.name, "us": took, "rate": rate, "unit": unit,
             "plan_us": host, "error": error, "right": error < bound, "layers": bench.layers,
             "group": bench.spec.num_heads // bench.spec.num_kv_heads, "head_dim": bench.spec.head_dim,
             "row_tokens": sum(count for count, _ in shape.rows) // len(shape.rows),
             "context": max(length for _, length in shape.rows), "decode": shape.is_decode}
        )  # fmt: skip
    del bench
    torch.cuda.empty_cache()
    return right


def summary(results: list[dict[str, Any]]) -> None:
    """Where a library is faster than the best of ours, by how much, and in the table's words."""
    print("\nfaster than the best of ours:")
    for model, shape in dict.fromkeys((row["model"], row["shape"]) for row in results):
        rows = [row for row in results if (row["model"], row["shape"]) == (model, shape) and row["right"]]
        own = min((row["us"] for row in rows if row["way"] in OURS), default=0.0)
        for row in rows:
            if row["way"] not in OURS and row["us"] < FASTER * own:
                where = " ".join(f"{key}={row[key]}" for key in ("head_dim", "group", "row_tokens", "context"))
                kind = "decode" if row["decode"] else "prompts"
                print(f"  {model} {shape} {kind}: {row['way']} {own / row['us']:.3f} times, {where}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama-8b,qwen3-0.6b")
    parser.add_argument("--kernels", default="fa3,fa2", help="of FlashInfer")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for library in (flashinfer.LIBRARY, *(edition.library for edition in EDITIONS)):
        print(f"  {library.missing() or library.distribution + ': installed'}")
    results: list[dict[str, Any]] = []
    right, kernels = True, given.kernels.split(",")
    for model in given.models.split(","):
        for name, rows in PROMPTS.items():
            right &= measure(Shape(name, model, rows), lambda bench: prompt_ways(bench, kernels), results)
        for name, rows in DECODES.items():
            right &= measure(Shape(name, model, rows), decode_ways, results)
    summary(results)
    if given.json:
        given.json.write_text("\n".join(map(json.dumps, results)) + "\n")
    print(f"\nnumerics: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
