"""What decode layers gain from norms inside products and from other shapes of attention; prints table entries to paste.

    python benchmarks/triton_fused.py [--models 8b,0.6b] [--types bf16,fp8] [--tokens 16,1,8,2,4,32,64] [--seconds 220]

First every way with the norm (`linear_table.NormedWay`) and every shape of attention is compiled and compared with
float64 on random data; what is wrong is named and left out. Then each is put into a chain of layers (`triton_layers`)
in a graph, alone and together, microseconds a layer beside the chain of the tables as they are, which is timed before
and after: a gain within their difference is none. Last come the rules of `LinearTable.normed` that were worth more than
that. When the seconds are over, what has not been timed yet is left out, and it says so.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import triton_layers as layers
from graph_timing import timed
from torch import Tensor
from triton_layers import BLOCK, CONFIGS, FACTS, SHAPES, Chain, random_weight

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_triton.attention.configs import DecodeConfig, max_parts
from tenon_triton.attention.launch import Context, Workspace, launch_decode
from tenon_triton.ops.linear_table import NormedGemv, NormedWay, Tiles
from tenon_triton.ops.normed import normed_product
from tenon_triton.ops.prologue import AddNorm, gain_of

OPS = {"qkv": None, "gate_up": "silu"}
EPS = 1e-6
BEST = 15  # replays of a graph
CONTEXTS = (64, 320, 1024, 4096)

QKV = [(64, 128, 1, 4), (64, 128, 2, 4), (64, 128, 4, 4), (64, 256, 2, 3), (64, 64, 2, 6)]  # n, k, splits, stages
GATE_UP = [(64, 128, 1, 3), (64, 128, 1, 2), (64, 64, 1, 4), (64, 64, 1, 5)]
QKV_FLOAT8 = [(64, 128, 2, 4), (64, 256, 1, 4), (64, 256, 2, 4), (64, 256, 4, 4)]
GATE_UP_FLOAT8 = [(64, 128, 1, 4), (64, 128, 1, 3), (64, 256, 1, 3)]
GEMVS = {  # rows, warps by the width of a row
    ("qkv", 4096): [(2, 8), (4, 8), (1, 8)],
    ("gate_up", 4096): [(1, 8), (2, 8)],
    ("qkv", 1024): [(4, 4), (2, 4), (8, 4)],
    ("gate_up", 1024): [(2, 4), (4, 4)],
}
ATTENTIONS: dict[str, DecodeConfig] = {  # beside the table's, where rows x KV heads are no more than compute units
    "one part, 5 tiles of 64 in flight": DecodeConfig(
        tile=64, warps=4, stages=6, programs_per_unit=1, min_tokens=64, fetches=5
    ),
    "one part, strands, 5 of 64": DecodeConfig(
        tile=64, warps=4, stages=6, programs_per_unit=1, min_tokens=64, fetches=5, strands=4
    ),
    "one part, strands, 2 of 128": DecodeConfig(
        tile=128, warps=4, stages=3, programs_per_unit=1, min_tokens=128, fetches=3, strands=4
    ),
    "one part, 8 strands, 2 of 128": DecodeConfig(
        tile=128, warps=8, stages=3, programs_per_unit=1, min_tokens=128, fetches=3, strands=8
    ),
    "two parts, strands, 2 of 64": DecodeConfig(
        tile=64, warps=4, stages=3, programs_per_unit=2, min_tokens=64, fetches=3, strands=4
    ),
    "two parts, 2 of 64": DecodeConfig(tile=64, warps=4, stages=3, programs_per_unit=2, min_tokens=64, fetches=3),
    "four parts, 2 strands, 1 of 64": DecodeConfig(
        tile=64, warps=2, stages=2, programs_per_unit=4, min_tokens=64, fetches=2, strands=2
    ),
    "eight parts, 2 strands, 1 of 64": DecodeConfig(
        tile=64, warps=2, stages=2, programs_per_unit=8, min_tokens=64, fetches=1, strands=2
    ),
    "eight parts, 4 warps, 1 of 64": DecodeConfig(
        tile=64, warps=4, stages=2, programs_per_unit=8, min_tokens=64, fetches=1
    ),
}
Key = tuple[str, int, bool]  # op, hidden, FP8


@dataclass
class Found:
    """What stands a check, and when to stop."""

    until: float
    broken: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until


def height(tokens: int) -> int:
    """Rows of a tile for so many tokens."""
    return 16 if tokens <= 16 else 32 if tokens <= 32 else 64


def ways(op: str, out: int, hidden: int, tokens: int, *, fp8: bool) -> list[NormedWay]:
    """Ways with the norm to try."""
    found: list[NormedWay] = []
    if tokens <= 4:
        lines = out // (2 if op == "gate_up" else 1)
        for rows, warps in GEMVS[op, hidden]:
            turns = {2, 4, max(1, -(-lines // (rows * 4 * FACTS.compute_units)))}  # the last: one wave of four a unit
            found += [NormedGemv(rows=rows, turns=count, warps=warps) for count in sorted(turns)]
    if tokens > 1:
        shapes = {("qkv", False): QKV, ("qkv", True): QKV_FLOAT8, ("gate_up", False): GATE_UP}.get(
            (op, fp8), GATE_UP_FLOAT8
        )
        m = height(tokens)
        found += [  # a program adds and scales m rows of x beside its product: large tiles want more threads
            Tiles(m=m, n=n, k=k, splits=s, warps=8 if m * k >= 8192 else 4, stages=st, swap=True, widens=fp8)
            for n, k, s, st in shapes
        ]
    return found


def compiled_as(way: NormedWay) -> NormedWay:
    """Ways that are one kernel, as one."""
    return replace(way, turns=3) if isinstance(way, NormedGemv) else way


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def check_way(key: Key, way: NormedWay, tokens: int) -> str | None:
    """What is wrong with a way, on random data with a ragged last tile of rows."""
    op, hidden, fp8 = key
    weight = random_weight(1536, hidden, fp8=fp8)
    x, residual = (torch.randn(tokens, hidden, device=layers.CUDA, dtype=layers.BF16) * 2 for _ in range(2))
    gain = gain_of(torch.rand(hidden, device=layers.CUDA).to(layers.BF16) + 0.5, 0.0)
    total = torch.full_like(x, float("nan"))
    added = AddNorm(residual=residual, total=total, gain=gain, eps=EPS)
    y = normed_product(x, weight, way, added, OPS[op])
    if not torch.equal(total, x + residual):
        return "the sum is not the parts'"
    rows = total.double() * (total.double().pow(2).mean(1, keepdim=True) + EPS).rsqrt() * gain.stored.double()
    wide = weight.weight.double() * (1.0 if weight.scale is None else weight.scale.double()[:, None])
    wanted = rows @ wide.t()
    if op == "gate_up":
        gate, up = wanted.chunk(2, 1)
        wanted = torch.nn.functional.silu(gate) * up
    wrong = error(y, wanted)
    return None if wrong < 0.01 else f"differs from float64 by {wrong:.1e}"


@dataclass
class Rows:
    """Decodes of one length, on several caches in turn: of few or short rows the level-2 cache holds them all."""

    rows: int
    length: int
    group: int
    caches: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows, kv_heads = self.rows, 8
        per_row = -(-self.length // BLOCK)
        count = max(2, min(16, (128 << 20) // (rows * per_row * 2 * kv_heads * BLOCK * 128 * 2)))
        make: dict[str, Any] = {"device": layers.CUDA, "dtype": torch.int32}
        table = torch.randperm(rows * per_row, device=layers.CUDA).to(torch.int32).view(rows, per_row)
        self.caches = [
            torch.randn(rows * per_row, 2, kv_heads, BLOCK, 128, device=layers.CUDA, dtype=layers.BF16)
            for _ in range(count)
        ]
        self.query = torch.randn(rows, kv_heads * self.group, 128, device=layers.CUDA, dtype=layers.BF16)
        self.out = torch.empty_like(self.query)
        self.context = Context(
            block_table=table, rows=torch.arange(rows, **make), query_starts=torch.arange(rows + 1, **make),
            seq_lens=torch.full((rows,), self.length, **make), block_size=BLOCK,
        )  # fmt: skip
        self.spec = AttentionSpec(
            num_heads=kv_heads * self.group, num_kv_heads=kv_heads, head_dim=128, scale=128**-0.5, dtype=DType.BFLOAT16,
            kv_dtype=DType.BFLOAT16,
        )  # fmt: skip
        programs = 8 * FACTS.compute_units * self.group
        self.workspace = Workspace(
            mixed=torch.zeros(programs * 128, device=layers.CUDA), log=torch.zeros(programs, device=layers.CUDA),
            arrivals=torch.zeros(1 << 12, **make),
        )  # fmt: skip

    def run(self, config: DecodeConfig, cache: Tensor) -> Tensor:
        parts = max_parts(self.rows, 8, config, FACTS)
        launch_decode(
            self.out, self.query, cache, None, self.context, self.rows, parts, self.workspace, self.spec, config
        )
        return self.out

    def wrong(self, config: DecodeConfig) -> str | None:
        """What is wrong with a shape of attention."""
        self.out.fill_(float("nan"))
        found = self.run(config, self.caches[0]).double()
        held = self.caches[0][self.context.block_table.long()].double()  # [rows, blocks, 2, kv heads, BLOCK, 128]
        key, value = (held[:, :, i].transpose(1, 2).flatten(2, 3)[:, :, : self.length] for i in range(2))
        query = self.query.double().view(self.rows, 8, self.group, 128)
        wanted = (query @ key.transpose(2, 3) * 128**-0.5).softmax(-1) @ value
        differs = error(found, wanted.flatten(1, 2))
        if bool(self.workspace.arrivals.any()):
            return "its counters do not return to zero"
        return None if differs < 0.01 else f"differs from float64 by {differs:.1e}"

    def time(self, config: DecodeConfig) -> float:
        """Microseconds a launch."""
        calls: list[Callable[[], object]] = [lambda cache=cache: self.run(config, cache) for cache in self.caches]  # type: ignore[misc]
        return timed(calls * (16 // len(calls)), BEST)


def each(jobs: Sequence[tuple[tuple[Any, ...], Callable[[], str | None]]], found: Found) -> None:
    """Compile and check by many threads: a kernel's compiler is a process of its own."""

    def one(job: tuple[tuple[Any, ...], Callable[[], str | None]]) -> None:
        name, check = job
        try:
            if torch.cuda.is_available():
                torch.cuda.set_device(0)
            wrong = check()
        except Exception as caught:  # noqa: BLE001  a candidate may not fit the device; the others are timed
            wrong = f"{type(caught).__name__}: {str(caught)[:160]}"
        if wrong:
            found.broken.add(name)
            print("left out", *name, wrong, flush=True)

    one(jobs[0])
    with ThreadPoolExecutor(15) as pool:
        list(pool.map(one, jobs[1:]))


def check_all(models: list[str], types: list[bool], counts: list[int], found: Found) -> None:
    jobs: dict[tuple[Any, ...], Callable[[], str | None]] = {}
    for model in models:
        shape = SHAPES[model]
        for fp8 in types:
            for op in OPS:
                key = (op, shape.hidden, fp8)
                for tokens in counts:
                    for way in map(compiled_as, ways(op, *shape.weights[op], tokens, fp8=fp8)):
                        few = tokens if isinstance(way, NormedGemv) else max(1, height(tokens) - 3)
                        jobs.setdefault((*key, way, few), lambda k=key, w=way, t=few: check_way(k, w, t))  # type: ignore[misc]
    for group in sorted({SHAPES[model].heads // 8 for model in models}):
        for name, config in {"table": CONFIGS.few, **ATTENTIONS}.items():
            assert config is not None
            for rows, length in ((3, 77), (16, 320)):
                jobs[name, group, rows, length] = lambda c=config, r=rows, n=length, g=group: Rows(r, n, g).wrong(c)  # type: ignore[misc]
    began = time.monotonic()
    each(list(jobs.items()), found)
    print(f"{len(jobs)} checks in {time.monotonic() - began:.0f} s, {len(found.broken)} left out", flush=True)


def attention_alone(found: Found) -> None:
    """Every shape of attention at several contexts, since one serves them all."""
    print("attention alone, us a launch, 8 KV heads in groups of 4, contexts", *CONTEXTS, flush=True)
    for rows in (1, 4, 16):
        cases = [Rows(rows, length, 4) for length in CONTEXTS]
        for name, config in {"table": CONFIGS.few, **ATTENTIONS}.items():
            if found.is_over or (name, 4, 16, 320) in found.broken:
                continue
            assert config is not None
            print(f"  {rows:3} rows {name:36}", *(f"{case.time(config):7.1f}" for case in cases), flush=True)


def measured(chain: Chain) -> float:
    return timed([chain.run], BEST) / len(chain.layers)


def case(chain: Chain, model: str, tokens: int, found: Found) -> dict[str, Any]:
    """One number of tokens: each op's ways alone, then the best of all together."""
    chain.at(tokens)
    chain.table.normed.clear()
    chain.decode = None
    shape, fp8 = chain.shape, chain.fp8
    line: dict[str, Any] = {"model": model, "fp8": fp8, "tokens": tokens, "bytes": round(chain.floor(), 1)}
    plain = chain.run().double()
    before = measured(chain)
    best: dict[str, tuple[float, NormedWay]] = {}
    for op in OPS:
        size = shape.weights[op]
        times = []
        for way in ways(op, *size, tokens, fp8=fp8):
            few = tokens if isinstance(way, NormedGemv) else max(1, height(tokens) - 3)
            if (op, shape.hidden, fp8, compiled_as(way), few) in found.broken:
                continue
            chain.table.normed = {size: way}
            if chain.policy.normed(tokens, chain.layers[0].weights[op], paired=op == "gate_up") is not None:
                times.append((measured(chain), way))
        times.sort(key=lambda item: item[0])
        chain.table.normed = {}
        if times:
            best[op] = times[0]
            line[op] = [(short(way), round(took, 2)) for took, way in times[:4]]
    attention: tuple[float, str] = (float("inf"), "table")
    if tokens * shape.kv_heads <= FACTS.compute_units:
        group, times_of = shape.heads // shape.kv_heads, []
        for name, config in ATTENTIONS.items():
            if (name, group, 16, 320) not in found.broken:
                chain.decode = config
                times_of.append((measured(chain), name))
        chain.decode = None
        times_of.sort()
        attention = times_of[0]
        line["attention"] = [(name, round(took, 2)) for took, name in times_of[:4]]
    after = measured(chain)
    noise = max(abs(before - after), 0.002 * before)
    table = min(before, after)
    line["table"], line["noise"] = round(table, 2), round(noise, 2)
    chosen = {op: way for op, (took, way) in best.items() if took < table - noise}
    chain.table.normed = {shape.weights[op]: way for op, way in chosen.items()}
    line["norms"] = round(measured(chain), 2) if chosen else line["table"]
    if attention[0] < table - noise:
        chain.decode = ATTENTIONS[attention[1]]
    line["norms and attention"] = round(measured(chain), 2)
    line["differs"] = float(f"{error(chain.run(), plain):.1e}")
    line["chosen"] = {op: (shape.weights[op], way) for op, way in chosen.items()}
    chain.decode = None
    print(
        f"{model:5} {'fp8 ' if fp8 else 'bf16'} M={tokens:3} bytes {line['bytes']:6} table {line['table']:7} +-"
        f"{line['noise']:5} norms {line['norms']:7} with attention {line['norms and attention']:7}"
        f" differs {line['differs']}"
    )
    for name in (*OPS, "attention"):
        print(f"      {name:9}", *(f"{label} {took}," for label, took in line.get(name, [])), flush=True)
    return line


def short(way: NormedWay) -> str:
    if isinstance(way, NormedGemv):
        return f"N{way.rows}x{way.turns}w{way.warps}"
    return layers.short(way)


def rules(lines: list[dict[str, Any]], *, fp8: bool) -> list[str]:
    """Entries for `LinearTable.normed`: the first that fits is taken, so smaller ones come first, and where none is
    better the norm is kept apart."""
    entries = []
    for line in lines:
        if line["fp8"] != fp8:
            continue
        for op in OPS:
            out, inner = SHAPES[line["model"]].weights[op]
            way = line["chosen"].get(op, (None, None))[1]
            entries.append((line["tokens"], inner, out, way))
    entries.sort(key=lambda entry: entry[:3])
    while entries and entries[-1][3] is None:
        entries.pop()
    return [
        f"Rule(max_tokens={tokens}, way={way!r}, max_out={out}, max_in={inner})," for tokens, inner, out, way in entries
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="8b,0.6b")
    parser.add_argument("--types", default="bf16,fp8")
    parser.add_argument("--tokens", default="16,1,8,2,4,32,64")
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    found = Found(until=time.monotonic() + args.seconds)
    models, types = args.models.split(","), [text == "fp8" for text in args.types.split(",")]
    counts = [int(text) for text in args.tokens.split(",")]
    torch.manual_seed(0)
    check_all(models, types, counts, found)
    lines: list[dict[str, Any]] = []
    for model in models:
        for fp8 in types:
            if found.is_over:
                break
            chain = Chain(shape=SHAPES[model], fp8=fp8, tokens=1, shared_bytes=FACTS.shared_bytes)
            for tokens in counts:
                if found.is_over:
                    print(f"no time for {model} fp8={fp8} M={tokens}", flush=True)
                    continue
                lines.append(case(chain, model, tokens, found))
            del chain
    attention_alone(found)
    for fp8 in types:
        print(f"LinearTable.normed of {'FLOAT8_BANDWIDTH' if fp8 else 'BANDWIDTH'}:")
        print(*(f"    {text}" for text in rules(lines, fp8=fp8)), sep="\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps(lines, default=repr))


if __name__ == "__main__":
    main()
