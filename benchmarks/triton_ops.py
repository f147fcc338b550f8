# ruff: noqa: B023  what is timed runs before the loop goes on
"""Checks and times the kernels of `tenon_triton.ops` on a device, at the shapes of an 8B and a 0.6B model.

    PYTHONPATH=platforms/src:plugins/triton/src:plugins/cuda/src python benchmarks/triton_ops.py [--out FILE]

Prints errors against float64, then microseconds a call inside a captured graph and the bytes moved a second (weights
are rotated so that no cache holds them), and for linears every way beside torch's: what `linear_table.py` needs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from graph_timing import timed
from torch import Tensor

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops.warpgroup_gated import WarpgroupGated
from tenon_cuda.ops.warpgroups import ARCH
from tenon_platforms.batch import NUM_ROW_COLUMNS, RowColumn, SamplingBatch
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel
from tenon_platforms.noise import sequence_key
from tenon_platforms.ops.linear import Dense
from tenon_platforms.ops.linear_reference import quantize_fp8
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.moe_reference import moe_layer as moe_reference
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.sampling_reference import sampler as reference_sampler
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import MoEWeights
from tenon_platforms.shapes import GREEDY, SamplingMode
from tenon_triton.attention.kv_cache import LAYOUT_ID
from tenon_triton.ops import float8, linear, logprobs, mlp, moe, norm, rope_kv, sampling
from tenon_triton.ops.gemv import gemv
from tenon_triton.ops.linear_table import Gemv, Library, LinearTable, Rule, Tiles, Way

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
HALF = Dense(stored=DType.BFLOAT16)
CACHE = 256 << 20  # bytes of weights to rotate through
SHAPES = {  # name: (out, in)
    "8b.qkv": (6144, 4096), "8b.out": (4096, 4096), "8b.gate_up": (28672, 4096), "8b.down": (4096, 14336),
    "8b.head": (128256, 4096), "0.6b.qkv": (4096, 1024), "0.6b.out": (1024, 2048), "0.6b.gate_up": (6144, 1024),
    "0.6b.down": (1024, 3072), "0.6b.head": (151936, 1024),
}  # fmt: skip
GEMVS = [Gemv(rows=r, block=b, warps=w) for r, b, w in (
    (1, 1024, 4), (1, 2048, 4), (1, 4096, 4), (1, 4096, 8), (1, 1024, 2), (2, 1024, 4), (2, 2048, 8), (4, 512, 4),
    (4, 1024, 8))]  # fmt: skip
DOTS = [
    Tiles(m=m, n=n, k=k, splits=s, warps=w, stages=st, swap=swap)
    for n, k, s, w, st, swap in (
        (64, 128, 1, 4, 4, False), (64, 128, 2, 4, 4, False), (64, 128, 4, 4, 4, False), (32, 256, 1, 4, 3, False),
        (32, 256, 2, 4, 3, False), (64, 128, 8, 4, 4, False), (128, 64, 4, 4, 5, False), (16, 256, 1, 4, 4, False),
        (64, 128, 1, 4, 4, True), (64, 128, 2, 4, 4, True), (64, 128, 4, 4, 4, True), (128, 128, 2, 8, 3, True),
    )
    for m in (16, 32, 64)
]  # fmt: skip
RESULTS: list[dict[str, Any]] = []


def say(*parts: object) -> None:
    print(*parts, flush=True)


def record(kind: str, name: str, tokens: int, microseconds: float, num_bytes: float, **more: Any) -> None:
    RESULTS.append({"kind": kind, "name": name, "tokens": tokens, "us": round(microseconds, 3),
                    "TB/s": round(num_bytes / microseconds / 1e6, 3), **more})  # fmt: skip


def error(found: Tensor, wanted: Tensor) -> float:
    """||found - wanted|| / ||wanted|| in float64; NaN passes nothing."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))


def short(way: Way) -> str:
    if isinstance(way, Gemv):
        return f"G{way.rows}x{way.block}w{way.warps}"
    if isinstance(way, Tiles):
        return f"T{way.m}x{way.n}x{way.k}/{way.splits}w{way.warps}s{way.stages}{'S' if way.swap else ''}"
    return "lib"


def policy_of(way: Way) -> linear.LinearPolicy:
    """Everything in one way."""
    table = LinearTable(rules=(Rule(max_tokens=2**31, way=way),))
    return linear.LinearPolicy(table=table, float8_table=table, float8=True)


def ways(tokens: int) -> list[Way]:
    """All candidates for so many tokens, the library's first."""
    fits = 16 if tokens <= 16 else 32 if tokens <= 32 else 64
    small: list[Way] = list(GEMVS) if tokens <= 4 else []
    return [Library(), *small, *(dot for dot in DOTS if dot.m == fits or (tokens > 16 and dot.m == fits // 2))]


def weight_of(out: int, inner: int, *, fp8: bool) -> linear.Weight:
    dense = torch.randn(out, inner, device=DEVICE, dtype=BF16) * 0.05
    if not fp8:
        return linear.Weight(weight=dense, scale=None, bias=None)
    values, scale = quantize_fp8(dense)
    return linear.Weight(weight=values, scale=scale, bias=None)


def compile_all() -> None:
    """Every specialization once, on small data, by many threads: compilers run beside each other."""

    def one(job: tuple[Way, int, bool]) -> str | None:
        way, tokens, fp8 = job
        torch.cuda.set_device(DEVICE.index or 0)
        x = torch.randn(tokens, 8192, device=DEVICE, dtype=BF16)
        try:
            linear.multiply(x, weights[fp8], policy_of(way), BF16)
        except Exception as caught:  # noqa: BLE001  a candidate may not fit the device; the others are timed
            broken.add((way, fp8))
            return f"{short(way)} fp8={fp8}: {type(caught).__name__}: {str(caught)[:150]}"
        return None

    weights = {fp8: weight_of(256, 8192, fp8=fp8) for fp8 in (False, True)}
    jobs = [(way, m, fp8) for way in GEMVS for m in (1, 2, 4) for fp8 in (False, True)]
    jobs += [(way, 2, fp8) for way in DOTS for fp8 in (False, True)]
    started = time.monotonic()
    one(jobs[0])
    with ThreadPoolExecutor(14) as pool:
        for line in filter(None, pool.map(one, jobs)):
            say("refused", line)
    torch.cuda.synchronize()
    say(f"compiled {len(jobs)} specializations in {time.monotonic() - started:.1f} s")


broken: set[tuple[Way, bool]] = set()


def linears(*, fp8: bool) -> None:
    """Every way of every shape; one line a shape and number of tokens: torch's, then the best three."""
    say(f"--- linear {'fp8 (with quantizing)' if fp8 else 'bf16'}: us, TB/s of weights")
    for name, (out, inner) in SHAPES.items():
        count = max(1, min(24, CACHE // (out * inner * (1 if fp8 else 2))))
        held = [weight_of(out, inner, fp8=fp8) for _ in range(count)]
        for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024):
            x = torch.randn(tokens, inner, device=DEVICE, dtype=BF16)
            wide = (
                held[0].weight.double() if held[0].scale is None else held[0].weight.double() * held[0].scale[:, None]
            )
            wanted = x.double() @ wide.t() if out * inner < 1 << 26 else None
            del wide
            found = []
            for way in ways(tokens) if tokens <= 64 else [Library()]:
                if (way, fp8) in broken:
                    continue
                policy = policy_of(way)
                took = timed([lambda w=w: linear.multiply(x, w, policy, BF16) for w in held], 3)
                wrong = error(linear.multiply(x, held[0], policy, BF16), wanted) if wanted is not None else 0.0
                if not wrong < (0.06 if fp8 else 0.01):
                    say(f"WRONG {name} M={tokens} {short(way)}: {wrong:.2e}")
                found.append((took, short(way)))
                record("fp8" if fp8 else "bf16", name, tokens, took, held[0].weight.nbytes, way=short(way))
            library = next(t for t, w in found if w == "lib")
            best = sorted(f for f in found if f[1] != "lib")[:3]
            rate = held[0].weight.nbytes / 1e6
            line = f"{name} M={tokens} lib {library:.1f} ({rate / library:.2f})"
            say(line, *(f"| {w} {t:.1f} ({rate / t:.2f})" for t, w in best))
        del held


def pairs() -> None:
    """gate|up with the activation at its end, beside the product followed by the activation."""
    for fp8 in (False, True):
        for name, (out, inner) in (("8b", (28672, 4096)), ("0.6b", (6144, 1024))):
            held = [weight_of(out, inner, fp8=fp8) for _ in range(4 if name == "8b" else 16)]
            for tokens in (1, 2, 4):
                x = torch.randn(tokens, inner, device=DEVICE, dtype=BF16)
                line = []
                for way in (GEMVS[1], GEMVS[2], GEMVS[5]):
                    one = policy_of(way)
                    two = timed([lambda w=w: mlp.multiply(linear.multiply(x, w, one, BF16), "silu") for w in held], 5)
                    paired = timed(
                        [lambda w=w: gemv(x, w.weight, way, scale=w.scale, activation="silu") for w in held], 5
                    )
                    line.append(f"{short(way)} {two:.1f} -> {paired:.1f}")
                    record("pair", name, tokens, paired, held[0].weight.nbytes, way=short(way), fp8=fp8, unpaired=two)
                say(f"gate_up {name} fp8={fp8} M={tokens}: two launches -> paired:", *line)


def gated_rows() -> None:
    """gate|up of many rows on warp groups, beside the product followed by the activation; a third of a second each,
    since such a load lowers the clock. *taken*: where it is used.
    """
    arch = Arch(*torch.cuda.get_device_capability(DEVICE))
    if arch != ARCH:
        say(f"gated rows need {ARCH}, not {arch}")
        return
    many = WarpgroupGated(arch=arch, units=torch.cuda.get_device_properties(DEVICE).multi_processor_count)
    for name, (out, inner) in (("8b", (28672, 4096)), ("0.6b", (6144, 1024)), ("70b", (57344, 8192))):
        held = [weight_of(out, inner, fp8=False).weight for _ in range(3 if name != "0.6b" else 24)]
        for tokens in (256, 512, 640, 768, 896, 1000, 1024, 1536, 2048, 4096, 8192):
            x = torch.randn(tokens, inner, device=DEVICE, dtype=BF16)
            times = max(1, min(3000, int(0.06 * 7e14 / (2.0 * tokens * out * inner))) // len(held))
            two = timed([lambda w=w: mlp.multiply(torch.nn.functional.linear(x, w), "silu") for w in held * times], 5)
            one = timed([lambda w=w: many.run(x, w) for w in held * times], 5)
            taken = many.pays(tokens, out // 2)
            record("gated rows", name, tokens, one, held[0].nbytes, unpaired=two, taken=taken)
            say(f"gate_up {name} M={tokens}: {two:.1f} -> {one:.1f} us, {two / one:.3f}x{' taken' * taken}")


def sampling_batch(num: int, vocab: int, mode: SamplingMode, **columns: float) -> SamplingBatch:
    params = torch.zeros(num, NUM_ROW_COLUMNS, dtype=torch.int32)
    floats = params.view(torch.float32)
    floats[:, RowColumn.TEMPERATURE] = floats[:, RowColumn.TOP_P] = floats[:, RowColumn.REPETITION] = 1.0
    for row in range(num):
        pair = torch.tensor(sequence_key(row, 0), dtype=torch.int64).to(torch.int32)
        params[row, RowColumn.NOISE_KEY0], params[row, RowColumn.NOISE_KEY1] = pair[0], pair[1]
    for name, value in columns.items():
        (params if name == "TOP_K" else floats)[:, RowColumn[name]] = value
    counts = torch.zeros(2, 2, vocab, dtype=torch.int32, device=DEVICE)
    positions = torch.arange(num, dtype=torch.int32, device=DEVICE)
    return SamplingBatch(mode=mode, positions=positions, params=params.to(DEVICE), counts=counts, edits=counts.float())


MODES = {
    "greedy": (GREEDY, {"TEMPERATURE": 0.0}),
    "draw": (SamplingMode(noise=True), {"TEMPERATURE": 0.6}),
    "top-k 50, top-p .95": (SamplingMode(noise=True, filters=True), {"TEMPERATURE": 0.6, "TOP_K": 50, "TOP_P": 0.95}),
    "top-p .9": (SamplingMode(noise=True, filters=True), {"TEMPERATURE": 1.0, "TOP_P": 0.9}),
}


def logits_of(num: int, vocab: int, *, peaked: bool) -> Tensor:
    """Flat, as random weights give, or peaked, as trained ones do."""
    found = torch.randn(num, vocab, device=DEVICE) * (2.5 if peaked else 1.0)
    if peaked:
        found.scatter_add_(
            1, torch.randint(0, vocab, (num, 12), device=DEVICE), torch.rand(num, 12, device=DEVICE) * 14
        )
    return found.to(BF16)


def checks() -> None:
    """bf16 numerics at real shapes, against float64 or the reference."""
    say("--- checks: relative error; sampling: rows that differ from the reference")
    table = OpTable(platform="reference")
    for hidden in (1024, 4096, 20000):
        for offset in (0.0, 1.0):
            spec = RMSNormSpec(hidden=hidden, eps=1e-5, dtype=DType.BFLOAT16, weight_offset=offset)
            x, more = (torch.randn(333, hidden, device=DEVICE, dtype=BF16) for _ in range(2))
            weight = torch.randn(hidden, device=DEVICE, dtype=BF16)
            kernel, reference = norm.add_rms_norm(AddRMSNormSpec(norm=spec)), table.choose(AddRMSNormSpec(norm=spec))
            y, total = kernel.run(x, more, weight)
            y2, total2 = reference.run(x, more, weight)
            packed, _ = norm.add_rms_norm_float8(spec, x, more, weight)
            values, scale = quantize_fp8(y2)
            same = float((packed.values.view(torch.uint8) == values.view(torch.uint8)).float().mean())
            say(
                f"norm {hidden} offset {offset}: differ {float((y != y2).float().mean()):.5f} error {error(y, y2):.1e}"
                f" sum exact {torch.equal(total, total2)}; fp8 same {same:.4f} scale {error(packed.scale, scale):.1e}"
            )
    for features in (3072, 14336):
        x = torch.randn(333, 2 * features, device=DEVICE, dtype=BF16)
        for kind in ("silu", "gelu", "gelu_tanh"):
            gate, up = x.double().chunk(2, -1)
            truth = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}.get(
                kind, lambda g: torch.nn.functional.gelu(g, approximate="tanh")
            )(gate) * up
            rows8 = mlp.multiply_float8(x, kind)
            say(
                f"activation {kind} {features}: {error(mlp.multiply(x, kind), truth):.1e}"
                f" fp8 {error(rows8.values.double() * rows8.scale[:, None], truth):.1e}"
            )
    for heads, kv_heads, normed in ((32, 8, False), (16, 8, True)):
        check_rope(heads, kv_heads, normed, table)
    for vocab in (128256, 151936):
        for peaked in (False, True):
            for name, (mode, columns) in MODES.items():
                logits, batch = logits_of(64, vocab, peaked=peaked), sampling_batch(64, vocab, mode, **columns)
                found = sampling.sampler(SamplerSpec(vocab_size=vocab)).run(logits, batch)
                wanted = reference_sampler(SamplerSpec(vocab_size=vocab), table).run(logits, batch)
                say(f"sampling {vocab} peaked={peaked} {name}: {int((found != wanted).sum())} of 64 differ")


def rope_case(heads: int, kv_heads: int, normed: bool) -> tuple[QKNormRopeKVWriteSpec, Tensor]:
    part = RMSNormSpec(hidden=128, eps=1e-6, dtype=DType.BFLOAT16) if normed else None
    rope = RopeSpec(head_dim=128, rotary_dim=128, base=5e5, max_positions=8192)
    spec = QKNormRopeKVWriteSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=128, dtype=DType.BFLOAT16,
                                 layout_id=LAYOUT_ID, q_norm=part, k_norm=part, rope=rope)  # fmt: skip
    return spec, rope_table(rope).to(DEVICE)


def check_rope(heads: int, kv_heads: int, normed: bool, table: OpTable) -> None:
    from tenon_platforms.ops.rope_reference import qk_norm_rope_kv_write

    class Flat:
        def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
            cache[0][slots.long()], cache[1][slots.long()] = key, value

    spec, angles = rope_case(heads, kv_heads, normed)
    tokens = 333
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * 128, device=DEVICE, dtype=BF16)
    positions = torch.randint(0, 8192, (1, tokens), device=DEVICE, dtype=torch.int32)
    slots = torch.randperm(640, device=DEVICE)[:tokens].int()
    weights = [torch.randn(128, device=DEVICE, dtype=BF16) if normed else None for _ in range(2)]
    cache = torch.zeros(10, 2, kv_heads, 64, 128, device=DEVICE, dtype=BF16)
    flat = torch.zeros(2, 640, kv_heads, 128, device=DEVICE, dtype=BF16)
    kernel = rope_kv.qk_norm_rope_kv_write(spec)
    query = kernel.run(qkv, positions, angles, *weights, cache, slots)
    wanted = qk_norm_rope_kv_write(spec, table, Flat()).run(qkv, positions, angles, *weights, flat, slots)
    held = cache.permute(1, 0, 3, 2, 4).reshape(2, 640, kv_heads, 128)
    say(f"rope {heads}/{kv_heads} normed={normed}: q {error(query, wanted):.1e} cache {error(held, flat):.1e}")


def rest() -> None:
    """Everything but linears."""
    for hidden in (1024, 4096):
        spec = RMSNormSpec(hidden=hidden, eps=1e-5, dtype=DType.BFLOAT16)
        weight, kernel = torch.randn(hidden, device=DEVICE, dtype=BF16), norm.add_rms_norm(AddRMSNormSpec(norm=spec))
        line = []
        for tokens in (1, 16, 64, 256, 1024, 8192):
            xs = [[torch.randn(tokens, hidden, device=DEVICE, dtype=BF16) for _ in range(2)] for _ in range(8)]
            took = timed([lambda p=p: kernel.run(*p, weight) for p in xs], 5)
            fp8 = timed([lambda p=p: norm.add_rms_norm_float8(spec, *p, weight) for p in xs], 5)
            moved = 4 * tokens * hidden * 2
            record("norm", f"add_rms_norm {hidden}", tokens, took, moved, fp8=fp8)
            line.append(f"{tokens}: {took:.1f} ({moved / took / 1e6:.2f}) fp8 {fp8:.1f}")
        say(f"add_rms_norm {hidden} us (TB/s):", " | ".join(line))
    for features in (3072, 14336):
        line = []
        for tokens in (1, 16, 64, 256, 1024, 8192):
            xs = [torch.randn(tokens, 2 * features, device=DEVICE, dtype=BF16) for _ in range(4)]
            took = timed([lambda x=x: mlp.multiply(x, "silu") for x in xs], 5)
            fp8 = timed([lambda x=x: mlp.multiply_float8(x, "silu") for x in xs], 5)
            plain = timed([lambda x=x: float8.quantize(x) for x in xs], 5)
            moved = 3 * tokens * features * 2
            record("activation", f"silu {features}", tokens, took, moved, fp8=fp8, quantize=plain)
            line.append(f"{tokens}: {took:.1f} ({moved / took / 1e6:.2f}) fp8 {fp8:.1f} quantize {plain:.1f}")
        say(f"silu_mul {features} us (TB/s):", " | ".join(line))
    for heads, kv_heads, normed in ((32, 8, False), (16, 8, True)):
        spec_rope, angles = rope_case(heads, kv_heads, normed)
        kernel, line = rope_kv.qk_norm_rope_kv_write(spec_rope), []
        weights = [torch.randn(128, device=DEVICE, dtype=BF16) if normed else None for _ in range(2)]
        cache = torch.zeros(160, 2, kv_heads, 64, 128, device=DEVICE, dtype=BF16)
        for tokens in (1, 16, 64, 256, 1024, 8192):
            qkv = [torch.randn(tokens, (heads + 2 * kv_heads) * 128, device=DEVICE, dtype=BF16) for _ in range(4)]
            positions = torch.randint(0, 8192, (1, tokens), device=DEVICE, dtype=torch.int32)
            slots = torch.randperm(10240, device=DEVICE)[:tokens].int()
            took = timed([lambda x=x: kernel.run(x, positions, angles, *weights, cache, slots) for x in qkv], 5)
            moved = 2 * qkv[0].nbytes
            record("rope", f"{heads}/{kv_heads} normed={normed}", tokens, took, moved)
            line.append(f"{tokens}: {took:.1f} ({moved / took / 1e6:.2f})")
        say(f"rope_kv {heads}/{kv_heads} normed={normed} us (TB/s):", " | ".join(line))
    samplers()
    mixtures(MoESpec(hidden=2048, intermediate=768, num_experts=128, top_k=8, renormalize=True, activation="silu",
                     gate=HALF, up=HALF, down=HALF, dtype=DType.BFLOAT16), (1, 2, 4, 16, 64, 256, 4096))  # fmt: skip


def mixtures(spec: MoESpec, sizes: Sequence[int]) -> None:
    """A 30B model's experts (3 B active): error against the reference, and the bytes of the experts that are hit."""
    kernel, reference = moe.moe_layer(spec), moe_reference(spec, OpTable(platform="reference"))
    assert isinstance(kernel, Kernel)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE, dtype=BF16) * 0.05

    experts, inner, hidden = spec.num_experts, spec.intermediate, spec.hidden
    held = [
        kernel.bind(MoEWeights(router=draw(experts, hidden), gate={"weight": draw(experts, inner, hidden)},
                               up={"weight": draw(experts, inner, hidden)},
                               down={"weight": draw(experts, hidden, inner)}))
        for _ in range(2)
    ]  # fmt: skip
    line = []
    for tokens in sizes:
        x = torch.randn(tokens, hidden, device=DEVICE, dtype=BF16)
        wrong = error(kernel.run(x, held[0]), reference.run(x, held[0])) if tokens <= 256 else 0.0
        took = timed([lambda w=w: kernel.run(x, w) for w in held], 5)
        hit = experts * (1 - (1 - spec.top_k / experts) ** tokens)  # of evenly spread tokens
        moved = hit * 3 * inner * hidden * 2
        record("moe", "30b", tokens, took, moved, error=wrong)
        line.append(f"{tokens}: {took:.0f} ({moved / took / 1e6:.2f}) error {wrong:.1e}")
    say("moe 128 experts, 8 a token, us (TB/s):", " | ".join(line))


def samplers() -> None:
    for vocab in (128256, 151936):
        run = sampling.sampler(SamplerSpec(vocab_size=vocab)).run
        for name, (mode, columns) in MODES.items():
            line = []
            for num in (1, 16, 64, 256, 1024):
                batch = sampling_batch(num, vocab, mode, **columns)
                took = []
                for peaked in (False, True):
                    logits = logits_of(num, vocab, peaked=peaked)
                    took.append(timed([lambda l=logits: run(l, batch)] * 2, 3))
                    record("sampling", f"{name} {vocab} peaked={peaked}", num, took[-1], logits.nbytes)
                line.append(f"{num}: {took[0]:.0f}/{took[1]:.0f}")
            say(f"sampling {vocab} {name} us flat/peaked:", " | ".join(line))
        logprobs_of, line = logprobs.token_logprobs(TokenLogprobsSpec(vocab_size=vocab)).run, []
        for num in (1, 64, 256):
            logits, tokens = logits_of(num, vocab, peaked=True), torch.zeros(num, dtype=torch.int32, device=DEVICE)
            took_both = [timed([lambda k=k: logprobs_of(logits, tokens, k)] * 2, 3) for k in (0, 5)]
            line.append(f"{num}: {took_both[0]:.0f}/{took_both[1]:.0f}")
        say(f"logprobs {vocab} us, 0/5 best:", " | ".join(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="checks,rest,pairs,gated,bf16,fp8")
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.monotonic()
    say(torch.cuda.get_device_name(), "torch", torch.__version__)
    parts: dict[str, Callable[[], None]] = {
        "checks": checks, "rest": rest, "pairs": pairs, "gated": gated_rows, "bf16": lambda: linears(fp8=False),
        "fp8": lambda: linears(fp8=True),
    }  # fmt: skip
    wanted = options.only.split(",")
    with torch.inference_mode():
        if {"bf16", "fp8", "pairs"} & set(wanted):
            compile_all()
        for name, part in parts.items():
            if name in wanted:
                begun = time.monotonic()
                part()
                say(f"--- {name}: {time.monotonic() - begun:.1f} s")
    if options.out:
        options.out.write_text(json.dumps(RESULTS))
    say(f"total {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
