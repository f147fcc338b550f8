"""Times decode steps of whole layers in a graph, and finds the ways of their linears that are fastest there.

    python benchmarks/triton_layers.py [--models 8b,0.6b] [--tokens 1,16] [--types bf16,fp8] [--tune] [--json FILE]

A chain of layers with weights of their own, as a model's step: add and norm, qkv, rotation with KV write, attention of
256 tokens, out, add and norm, gated MLP. Times are microseconds a layer, medians of replays. Beside each other: kernels
that begin when the one before is complete, those that begin early, MLPs in one launch where the device has them, and
with `--tune` every candidate of every linear while the other linears stay: a kernel that is fastest alone need not be
so between its neighbours.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checkout import use_checkout
from graph_timing import timed

use_checkout()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from tenon_cuda.capabilities import Arch  # noqa: E402
from tenon_cuda.meetings import MEETINGS  # noqa: E402
from tenon_cuda.ops.persistent_mlp import PersistentMLP  # noqa: E402
from tenon_platforms.dtypes import DType  # noqa: E402
from tenon_platforms.kernel import Kernel  # noqa: E402
from tenon_platforms.ops.attention import AttentionSpec  # noqa: E402
from tenon_platforms.ops.linear import Dense, LinearPart, MergedLinearSpec  # noqa: E402
from tenon_platforms.ops.linear_reference import quantize_fp8  # noqa: E402
from tenon_platforms.ops.mlp import GatedMLPSpec  # noqa: E402
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec  # noqa: E402
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeSpec  # noqa: E402
from tenon_platforms.ops.rope_reference import rope_table  # noqa: E402
from tenon_triton import early  # noqa: E402
from tenon_triton.attention.configs import DecodeConfig, attention_configs, max_parts  # noqa: E402
from tenon_triton.attention.kv_cache import LAYOUT_ID  # noqa: E402
from tenon_triton.attention.launch import Context, Workspace, launch_decode  # noqa: E402
from tenon_triton.facts import DeviceFacts  # noqa: E402
from tenon_triton.ops import linear, norm, rope_kv  # noqa: E402
from tenon_triton.ops.gated_mlp import gated_mlp  # noqa: E402
from tenon_triton.ops.linear import LinearPolicy, Weight  # noqa: E402
from tenon_triton.ops.linear_table import (  # noqa: E402
    BANDWIDTH,
    FLOAT8_BANDWIDTH,
    Gemv,
    Library,
    NormedWay,
    Tiles,
    Way,
)
from tenon_triton.ops.normed import normed_product  # noqa: E402
from tenon_triton.ops.prologue import AddNorm, Gain, gain_of  # noqa: E402

CUDA, BF16 = torch.device("cuda"), torch.bfloat16
FACTS = DeviceFacts(compute_units=132, shared_bytes=227 << 10)
BANDWIDTH_BYTES = 4.3e6  # a microsecond, of one H200
CONTEXT, BLOCK, MOST_ROWS = 320, 64, 256
CONFIGS = attention_configs(128, 4, 2, 2, FACTS)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's layer. normed: heads of q and k are. layers: of a chain, so many that no cache holds their weights."""

    hidden: int
    heads: int
    kv_heads: int
    inner: int
    layers: int
    normed: bool = False

    @property
    def weights(self) -> dict[str, tuple[int, int]]:
        """(out, in) of each linear."""
        rows = self.heads * 128
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * 128, self.hidden),
            "out": (self.hidden, rows),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }


SHAPES = {
    "8b": Shape(hidden=4096, heads=32, kv_heads=8, inner=14336, layers=8),
    "0.6b": Shape(hidden=1024, heads=16, kv_heads=8, inner=3072, layers=28, normed=True),
}
GEMVS = [
    Gemv(rows=r, block=b, warps=w)
    for r, b, w in ((1, 1024, 4), (1, 2048, 4), (2, 1024, 4), (2, 1024, 2), (1, 1024, 2), (2, 2048, 8), (4, 1024, 8),
                    (4, 512, 4), (1, 4096, 8), (2, 2048, 4), (4, 1024, 4))
]  # fmt: skip
PLAIN = [(n, k, s, 4, st) for n, k, s, st in (
    (64, 128, 1, 4), (64, 128, 2, 4), (64, 128, 4, 4), (64, 128, 8, 4), (32, 256, 1, 3), (32, 256, 2, 3),
    (32, 256, 4, 4), (16, 256, 1, 4), (16, 512, 1, 3), (32, 128, 4, 5))]  # fmt: skip
SWAPPED = [(64, 128, 1, 4, 4), (64, 128, 2, 4, 4), (64, 128, 4, 4, 5), (64, 128, 8, 4, 5), (64, 256, 1, 4, 4),
           (64, 256, 2, 4, 4), (64, 256, 4, 4, 4), (64, 256, 8, 4, 3), (128, 128, 1, 8, 4), (128, 128, 2, 8, 3),
           (128, 128, 4, 8, 4), (128, 128, 2, 4, 4), (128, 256, 2, 8, 3), (64, 512, 2, 4, 3), (64, 64, 4, 4, 6),
           (128, 64, 4, 4, 6)]  # fmt: skip

MANY = [
    (m, n, k, splits, warps, stages, swap)
    for m, n, k, warps, stages in (
        (64, 64, 64, 4, 5),
        (64, 64, 128, 4, 4),
        (64, 128, 64, 4, 4),
        (128, 64, 64, 4, 5),
        (128, 64, 128, 4, 3),
        (128, 128, 64, 8, 4),
        (256, 64, 64, 8, 4),
        (128, 32, 128, 4, 4),
    )
    for splits in (1, 2, 4)
    for swap in ((True, False) if n >= 64 else (False,))
]  # fmt: skip  more tokens than a tile has


class Chosen:
    """A table of one way for each shape."""

    def __init__(self, base: Any, pair_tokens: int) -> None:
        self.base, self.pair_tokens = base, pair_tokens
        self.ways: dict[tuple[int, int], Way] = {}
        self.normed: dict[tuple[int, int], NormedWay] = {}

    def normed_way(self, tokens: int, out_features: int, in_features: int) -> NormedWay | None:
        return self.normed.get((out_features, in_features))

    def way(self, tokens: int, out_features: int, in_features: int) -> Way:
        return self.ways.get((out_features, in_features)) or self.base.way(tokens, out_features, in_features)


@dataclass
class Layer:
    norms: tuple[Gain, Gain]
    weights: dict[str, Weight]
    cache: Tensor


def candidates(tokens: int, *, fp8: bool) -> list[Way]:
    """Ways to try for so many tokens."""
    if tokens > 64:
        tiles = [Tiles(m=m, n=n, k=k, splits=s, warps=w, stages=st, swap=swap) for m, n, k, s, w, st, swap in MANY]
        return [Library(), *(way for way in tiles if way.m <= 64 or tokens > way.m // 2)]
    m = 16 if tokens <= 16 else 32 if tokens <= 32 else 64
    found: list[Way] = [Library(), *(GEMVS if tokens <= 4 else ())]
    if tokens > 1:
        tiles = [Tiles(m=m, n=n, k=k, splits=s, warps=w, stages=st) for n, k, s, w, st in PLAIN]
        tiles += [Tiles(m=m, n=n, k=k, splits=s, warps=w, stages=st, swap=True) for n, k, s, w, st in SWAPPED]
        found += [way for way in tiles if fp8 or way.k * way.n <= 16384]
        if fp8:
            found += [replace(way, widens=True) for way in tiles]
            found += [replace(way, quantizes=True) for way in tiles]
    return found


def short(way: Way) -> str:
    if isinstance(way, Gemv):
        return f"G{way.rows}x{way.block}w{way.warps}"
    if isinstance(way, Tiles):
        letters = ("S" if way.swap else "") + ("W" if way.widens else "") + ("Q" if way.quantizes else "")
        return f"T{way.m}x{way.n}x{way.k}/{way.splits}w{way.warps}s{way.stages}{letters}"
    return "lib"


def random_weight(out: int, inner: int, *, fp8: bool) -> Weight:
    dense = torch.randn(out, inner, device=CUDA, dtype=BF16) * (inner**-0.5)
    if not fp8:
        return Weight(weight=dense, scale=None, bias=None)
    values, scale = quantize_fp8(dense)
    return Weight(weight=values, scale=scale, bias=None)


def merged(out: int, inner: int, *names: str) -> MergedLinearSpec:
    scheme = Dense(stored=DType.BFLOAT16)
    parts = tuple(LinearPart(name=name, out_features=out // len(names), scheme=scheme) for name in names)
    return MergedLinearSpec(in_features=inner, parts=parts, dtype=DType.BFLOAT16)


@dataclass
class Chain:
    """Layers of one shape and type, run for some number of tokens."""

    shape: Shape
    fp8: bool
    tokens: int
    fused: bool = True  # norms quantize
    shared_bytes: int = 0  # 0: ways are taken as they are
    decode: DecodeConfig | None = None  # None: the table's
    few: PersistentMLP | None = None  # MLPs in one launch
    layers: list[Layer] = field(default_factory=list)
    skip: set[str] = field(default_factory=set)
    kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.shape
        base = FLOAT8_BANDWIDTH if self.fp8 else BANDWIDTH
        self.table = Chosen(base, base.pair_tokens)
        self.policy = LinearPolicy(
            table=self.table, float8_table=self.table, float8=True, shared_bytes=self.shared_bytes  # type: ignore[arg-type]
        )  # fmt: skip
        part = RMSNormSpec(hidden=128, eps=1e-6, dtype=DType.BFLOAT16) if shape.normed else None
        rope = RopeSpec(head_dim=128, rotary_dim=128, base=5e5, max_positions=4096)
        spec = QKNormRopeKVWriteSpec(
            num_heads=shape.heads, num_kv_heads=shape.kv_heads, head_dim=128, dtype=DType.BFLOAT16, layout_id=LAYOUT_ID,
            q_norm=part, k_norm=part, rope=rope,
        )  # fmt: skip
        self.rope, self.angles = made(rope_kv.qk_norm_rope_kv_write(spec)), rope_table(rope).to(CUDA)
        self.gain = torch.ones(128, device=CUDA, dtype=BF16)
        self.norm = RMSNormSpec(hidden=shape.hidden, eps=1e-6, dtype=DType.BFLOAT16)
        self.add_norm = made(norm.add_rms_norm(AddRMSNormSpec(norm=self.norm)))
        mlp = GatedMLPSpec(
            gate_up=merged(*shape.weights["gate_up"], "gate", "up"), down=merged(*shape.weights["down"], "down"),
            activation="silu",
        )  # fmt: skip
        self.mlp = made(gated_mlp(mlp, self.policy))
        self.attention = AttentionSpec(
            num_heads=shape.heads, num_kv_heads=shape.kv_heads, head_dim=128, scale=128**-0.5, dtype=DType.BFLOAT16,
            kv_dtype=DType.BFLOAT16,
        )  # fmt: skip
        programs = 8 * FACTS.compute_units * (shape.heads // shape.kv_heads)
        self.workspace = Workspace(
            mixed=torch.zeros(programs * 128 * 4, device=CUDA), log=torch.zeros(programs * 4, device=CUDA),
            arrivals=torch.zeros(1 << 16, device=CUDA, dtype=torch.int32),
        )  # fmt: skip
        per_row = CONTEXT // BLOCK + 1
        self.per_row = per_row
        self.at(self.tokens)
        for _ in range(shape.layers):
            self.layers.append(
                Layer(
                    norms=(gain_of(torch.rand(shape.hidden, device=CUDA).to(BF16) + 0.5, 0.0),) * 2,
                    weights={name: random_weight(*size, fp8=self.fp8) for name, size in shape.weights.items()},
                    cache=torch.randn(MOST_ROWS * per_row, 2, shape.kv_heads, BLOCK, 128, device=CUDA, dtype=BF16),
                )
            )

    def at(self, tokens: int) -> None:
        """Change the number of rows, at most MOST_ROWS."""
        self.tokens, per_row = tokens, self.per_row
        rows = torch.arange(tokens, device=CUDA, dtype=torch.int32)
        table = torch.arange(MOST_ROWS * per_row, device=CUDA, dtype=torch.int32).view(MOST_ROWS, per_row)
        self.positions = torch.full((1, tokens), CONTEXT - 1, device=CUDA, dtype=torch.int32)
        self.slots = (table[:tokens, (CONTEXT - 1) // BLOCK] * BLOCK + (CONTEXT - 1) % BLOCK).contiguous()
        self.context = Context(
            block_table=table, rows=rows, query_starts=torch.arange(tokens + 1, device=CUDA, dtype=torch.int32),
            seq_lens=torch.full((tokens,), CONTEXT, device=CUDA, dtype=torch.int32), block_size=BLOCK,
        )  # fmt: skip
        self.x, self.residual = (torch.randn(tokens, self.shape.hidden, device=CUDA, dtype=BF16) for _ in range(2))

    def normed(
        self, x: Tensor, residual: Tensor, gain: Gain, weight: Weight, *, quantizes: bool = False
    ) -> tuple[Any, Tensor]:
        if self.fp8 and (quantizes or (self.fused and not self.policy.keeps(self.tokens, weight))):
            return norm.add_rms_norm_float8(self.norm, x, residual, gain.stored)
        found: tuple[Tensor, Tensor] = self.add_norm.run(x, residual, gain.stored)
        return found

    def at_once(
        self, x: Tensor, residual: Tensor, gain: Gain, weight: Weight, way: NormedWay, activation: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """A product with the add and the norm before it in one launch."""
        total = torch.empty_like(residual)
        added = AddNorm(residual=residual, total=total, gain=gain, eps=self.norm.eps)
        return normed_product(x, weight, way, added, activation), total

    def run(self) -> Tensor:
        x, residual = self.x, self.residual
        shape, skip, kept = self.shape, self.skip, self.kept
        for layer in self.layers:
            w = layer.weights
            way = self.policy.normed(self.tokens, w["qkv"])
            if way is not None:
                kept["qkv"], residual = self.at_once(x, residual, layer.norms[0], w["qkv"], way)
            elif "norm" not in skip:
                kept["norm"], residual = self.normed(x, residual, layer.norms[0], w["qkv"])
            if "qkv" not in skip and way is None:
                kept["qkv"] = linear.multiply(kept["norm"], w["qkv"], self.policy, BF16)
            gain = self.gain if shape.normed else None
            if "rope" not in skip:
                kept["rope"] = self.rope.run(
                    kept["qkv"], self.positions, self.angles, gain, gain, layer.cache, self.slots
                )
            query = kept["rope"]
            if "attention" not in skip:
                kept["attention"] = mixed = torch.empty_like(query)
                decode = self.decode or CONFIGS.decode_for(self.tokens, shape.kv_heads, FACTS)
                parts = max_parts(self.tokens, shape.kv_heads, decode, FACTS)
                launch_decode(
                    mixed, query, layer.cache, None, self.context, self.tokens, parts, self.workspace, self.attention,
                    decode,
                )  # fmt: skip
            if "out" not in skip:
                kept["out"] = linear.multiply(kept["attention"].flatten(1), w["out"], self.policy, BF16)
            x = kept["out"]
            one = self.few is not None and self.few.pays(self.tokens, w["gate_up"], w["down"])
            way = None if one else self.policy.normed(self.tokens, w["gate_up"], paired=True)
            if way is not None:
                inner, residual = self.at_once(x, residual, layer.norms[1], w["gate_up"], way, "silu")
                kept["mlp"] = linear.multiply(inner, w["down"], self.policy, BF16)
            elif "norm" not in skip:
                kept["norm"], residual = self.normed(x, residual, layer.norms[1], w["gate_up"], quantizes=one)
            if "mlp" not in skip and one:
                assert self.few is not None
                kept["mlp"] = self.few.run(kept["norm"], w["gate_up"], w["down"])
            elif "mlp" not in skip and way is None:
                kept["mlp"] = self.mlp.run(kept["norm"], (w["gate_up"], w["down"]))
            x = kept["mlp"]
        return x + residual

    def without(self, *names: str) -> float:
        """Microseconds a layer where some parts are left out and their last results taken."""
        self.skip = set()
        self.run()
        self.skip = set(names)
        try:
            return timed([self.run]) / len(self.layers)
        finally:
            self.skip = set()

    def floor(self) -> float:
        """Microseconds that a layer's bytes take."""
        weights = sum(weight.nbytes for weight in self.layers[0].weights.values())
        kv = self.tokens * CONTEXT * 2 * self.shape.kv_heads * 128 * 2
        return (weights + kv) / BANDWIDTH_BYTES


def made(kernel: Any) -> Kernel:
    assert isinstance(kernel, Kernel), kernel
    return kernel


@contextmanager
def launched_late() -> Iterator[None]:
    """Kernels begin when the one before is complete."""
    kept = early.options
    early.options = lambda: early.OFF  # type: ignore[assignment]
    try:
        yield
    finally:
        early.options = kept


def compile_all(jobs: list[tuple[Way, int, bool]]) -> set[tuple[Way, bool]]:
    """Every candidate once on small data, by many threads; those that do not compile or are wrong."""
    broken: set[tuple[Way, bool]] = set()
    weights = {fp8: random_weight(4096, 8192, fp8=fp8) for fp8 in (False, True)}
    wide = {False: weights[False].weight.double()}
    wide[True] = weights[True].weight.double() * weights[True].scale[:, None]  # type: ignore[index]
    spec = GatedMLPSpec(gate_up=merged(4096, 8192, "gate", "up"), down=merged(4096, 2048, "down"), activation="silu")
    downs = {fp8: random_weight(4096, 2048, fp8=fp8) for fp8 in (False, True)}

    def one(job: tuple[Way, int, bool]) -> str | None:
        way, tokens, fp8 = job
        torch.cuda.set_device(0)
        table = Chosen(None, max(64, tokens))
        table.ways = {(4096, 8192): way, (4096, 2048): Library()}
        policy = LinearPolicy(table=table, float8_table=table, float8=True)  # type: ignore[arg-type]
        x = torch.randn(tokens, 8192, device=CUDA, dtype=BF16)
        try:
            found = linear.multiply(x, weights[fp8], policy, BF16).double()
            wanted = x.double() @ wide[fp8].t()
            gate, up = wanted.chunk(2, 1)
            down = downs[fp8].weight.double() * (downs[fp8].scale[:, None] if fp8 else 1.0)
            both = made(gated_mlp(spec, policy)).run(x, (weights[fp8], downs[fp8])).double()
            truth = (torch.nn.functional.silu(gate) * up) @ down.t()
            wrong = max(float((a - b).norm() / b.norm()) for a, b in ((found, wanted), (both, truth)))
        except Exception as caught:  # noqa: BLE001  a candidate may not fit the device; the others are timed
            broken.add((way, fp8))
            return f"{short(way)} fp8={fp8}: {type(caught).__name__}: {str(caught)[:120]}"
        if not wrong < (0.06 if fp8 else 0.01):
            broken.add((way, fp8))
            return f"{short(way)} fp8={fp8} M={tokens} WRONG {wrong:.1e}"
        return None

    began = time.monotonic()
    one(jobs[0])
    with ThreadPoolExecutor(15) as pool:
        for line in filter(None, pool.map(one, jobs)):
            print("refused", line, flush=True)
    torch.cuda.synchronize()
    print(f"{len(jobs)} candidates compiled and checked in {time.monotonic() - began:.0f} s", flush=True)
    return broken


def tune(chain: Chain, broken: set[tuple[Way, bool]]) -> dict[str, Any]:
    """Each linear's ways in turn, the others as found so far."""
    chain.table.pair_tokens = max(64, chain.tokens)
    found: dict[str, Any] = {}
    layers = len(chain.layers)
    for name in ("gate_up", "down", "qkv", "out"):
        size = chain.shape.weights[name]
        times = []
        for way in candidates(chain.tokens, fp8=chain.fp8):
            if (way, chain.fp8) in broken:
                continue
            chain.table.ways[size] = way
            try:
                times.append((timed([chain.run], 3) / layers, short(way), way))
            except Exception as caught:  # noqa: BLE001
                print("failed", name, short(way), str(caught)[:100], flush=True)
        times.sort(key=lambda item: item[0])
        chain.table.ways[size] = times[0][2]
        library = next((took for took, label, _ in times if label == "lib"), math.nan)
        print(
            f"    {name:8} lib {library:6.1f} |", *(f"{label} {took:.1f}" for took, label, _ in times[:5]), flush=True
        )
        found[name] = [(label, round(took, 2)) for took, label, _ in times]
    return found


def heads(model: str, counts: list[int]) -> None:
    """The head's ways: alone, since it is larger than any cache."""
    out, inner = {"8b": (128256, 4096), "0.6b": (151936, 1024)}[model]
    weight = random_weight(out, inner, fp8=False)
    for tokens in counts:
        x = torch.randn(tokens, inner, device=CUDA, dtype=BF16)
        times = []
        for way in (None, *candidates(tokens, fp8=False)):
            table = Chosen(BANDWIDTH, 0)
            if way is not None:
                table.ways[(out, inner)] = way
            policy = LinearPolicy(table=table, float8_table=table, float8=True)  # type: ignore[arg-type]
            try:
                took = timed([lambda x=x, p=policy: [linear.multiply(x, weight, p, BF16) for _ in range(4)]], 3) / 4
            except Exception:  # noqa: BLE001  it does not fit
                continue
            times.append((took, "table" if way is None else short(way)))
        floor = weight.nbytes / BANDWIDTH_BYTES
        kept = [f"{label} {took:.1f}" for took, label in times if label in ("table", "lib")]
        print(
            f"head {model} M={tokens} floor {floor:.1f} |", *kept, "|", *(f"{n} {t:.1f}" for t, n in sorted(times)[:4])
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="8b,0.6b")
    parser.add_argument("--tokens", default="1,16")
    parser.add_argument("--types", default="bf16,fp8")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--heads", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    counts = [int(text) for text in args.tokens.split(",")]
    types = [text == "fp8" for text in args.types.split(",")]
    torch.manual_seed(0)
    broken: set[tuple[Way, bool]] = set()
    if args.heads:
        for model in args.models.split(","):
            heads(model, counts)
    if args.tune:
        classes = sorted({c if c <= 4 or c > 64 else 16 if c <= 16 else 32 if c <= 32 else 64 for c in counts})
        broken = compile_all([(way, c, fp8) for fp8 in types for c in classes for way in candidates(c, fp8=fp8)])
    results: list[dict[str, Any]] = []
    few = PersistentMLP(
        arch=Arch(*torch.cuda.get_device_capability()),
        units=FACTS.compute_units,
        shared_bytes=FACTS.shared_bytes,
        counter=MEETINGS.lend(torch.device("cuda", 0)),
    )
    for model in args.models.split(","):
        for fp8 in types:
            if model == "0.6b" and fp8:
                continue
            chain = Chain(shape=SHAPES[model], fp8=fp8, tokens=1)
            layers = len(chain.layers)
            for tokens in counts:
                chain.at(tokens)
                chain.table.ways.clear()
                chain.table.pair_tokens = chain.table.base.pair_tokens
                line: dict[str, Any] = {"model": model, "fp8": fp8, "tokens": tokens, "floor": round(chain.floor(), 2)}
                chain.fused = False
                with launched_late():
                    wanted = chain.run()
                    line["late"] = round(timed([chain.run]) / layers, 2)
                got = chain.run()
                line["early"] = round(timed([chain.run]) / layers, 2)
                line["differs"] = float((got.double() - wanted.double()).norm() / wanted.double().norm())
                chain.fused = True
                chain.run()
                line["early, norms quantize"] = round(timed([chain.run]) / layers, 2)
                if few.pays(tokens, *(chain.layers[0].weights[name] for name in ("gate_up", "down"))):
                    chain.few = few
                    chain.run()
                    line["MLPs in one launch"] = round(timed([chain.run]) / layers, 2)
                    chain.few = None
                for tile, warps, least in (
                    (32, 2, 512),
                    (32, 2, 32),
                    (64, 4, 64),
                    (32, 1, 64),
                    (64, 2, 64),
                    (64, 4, 128),
                ):
                    chain.decode = replace(CONFIGS.decode, min_tokens=least, tile=tile, warps=warps)
                    line[f"parts of {least}, tile {tile}, warps {warps}"] = round(timed([chain.run]) / layers, 2)
                chain.decode = None
                whole = timed([chain.run]) / layers
                parts = ("norm", "qkv", "rope", "attention", "out", "mlp")
                line["costs"] = {name: round(whole - chain.without(name), 2) for name in parts}
                with launched_late():
                    late = timed([chain.run]) / layers
                    line["costs late"] = {name: round(late - chain.without(name), 2) for name in parts}
                chain.decode = None
                print(line, flush=True)
                if args.tune:
                    line["tuned"] = tune(chain, broken)
                    line["best"] = round(timed([chain.run]) / layers, 2)
                    with launched_late():
                        line["best late"] = round(timed([chain.run]) / layers, 2)
                    print(f"    best {line['best']}, launched late {line['best late']}", flush=True)
                results.append(line)
            del chain
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
