"""Products with the residual add and the norm in their launch, against float64 at odd shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear import Dense, FP8Channel, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.linear_reference import quantize_fp8
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, NormedWeights, PartTensors
from tenon_platforms.torch_dtypes import to_torch
from tenon_triton.ops import normed
from tenon_triton.ops.gemv import MOST_TOKENS
from tenon_triton.ops.linear import LinearPolicy, Weight
from tenon_triton.ops.linear_table import BANDWIDTH, LIBRARY, LinearTable, NormedGemv, NormedWay, Rule, Tiles
from tenon_triton.ops.normed import Prepared, add_rms_norm_then
from tenon_triton.ops.offers import register
from tenon_triton.ops.prologue import shrink_of

pytestmark = pytest.mark.unit
GEMV = NormedGemv(rows=2, turns=3, warps=4)
TILES = [
    Tiles(m=16, n=32, k=32, widens=True),
    Tiles(m=16, n=64, k=64, swap=True, widens=True),
    Tiles(m=32, n=32, k=32, splits=3, widens=True),
    Tiles(m=16, n=64, k=32, splits=2, swap=True, widens=True),
]
TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 1.5e-3}
EPS = 1e-5


def policy_of(way: NormedWay | None, **fields: bool) -> LinearPolicy:
    """One way with the norm, behind it tiles: what a table that names it computes at any number of tokens."""
    ways: tuple[Rule[NormedWay | None], ...] = () if way is None else (Rule(max_tokens=2**31, way=way),)
    table = LinearTable(rules=(Rule(max_tokens=2**31, way=Tiles(k=32, widens=True)),), pair_tokens=64, normed=ways)
    return LinearPolicy(table=table, float8_table=table, **fields)


def spec_of(
    hidden: int, outs: tuple[int, ...], scheme: WeightScheme, dtype: DType, *, bias: bool, offset: float, gated: bool
) -> AddRMSNormThenSpec:
    norm = RMSNormSpec(hidden=hidden, eps=EPS, dtype=dtype, weight_offset=offset)
    parts = tuple(LinearPart(name=f"p{i}", out_features=out, scheme=scheme) for i, out in enumerate(outs))
    first = MergedLinearSpec(in_features=hidden, parts=parts, dtype=dtype, bias=bias)
    if not gated:
        return AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=norm), then=first)
    last = LinearPart(name="down", out_features=hidden, scheme=scheme)
    down = MergedLinearSpec(in_features=outs[0], parts=(last,), dtype=dtype)
    return AddRMSNormThenSpec(
        norm=AddRMSNormSpec(norm=norm), then=GatedMLPSpec(gate_up=first, down=down, activation="silu")
    )


def part(out: int, inner: int, scheme: WeightScheme) -> PartTensors:
    weight = torch.randn(out, inner) * inner**-0.5
    if isinstance(scheme, FP8Channel):
        values, scale = quantize_fp8(weight)
        return {"weight": values, "scale": scale}
    assert isinstance(scheme, Dense)
    return {"weight": weight.to(to_torch(scheme.stored))}


def wide(tensors: PartTensors) -> Tensor:
    weight = tensors["weight"].double()
    return weight * tensors["scale"].double()[:, None] if "scale" in tensors else weight


def made(kernel: Kernel | No) -> Kernel:
    assert isinstance(kernel, Kernel), kernel
    return kernel


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-12))


def check(
    way: NormedWay, tokens: int, hidden: int, outs: tuple[int, ...], dtype: DType, *, bias: bool = False,
    offset: float = 0.0, gated: bool = False, float8: bool = False, strided: bool = False, gain: float = 1.0,
) -> None:  # fmt: skip
    """The kernel's rows against float64, and its sum against torch's, bit for bit."""
    torch.manual_seed(tokens + hidden)
    scheme: WeightScheme = FP8Channel() if float8 else Dense(stored=dtype)
    spec = spec_of(hidden, outs, scheme, dtype, bias=bias, offset=offset, gated=gated)
    kernel = made(add_rms_norm_then(spec, policy_of(way, float8=float8)))
    kind = to_torch(dtype)
    parts = tuple(part(out, hidden, scheme) for out in outs)
    first = LinearWeights(parts=parts, bias=torch.randn(sum(outs)).to(kind) if bias else None)
    down = part(hidden, outs[0], scheme)
    stored = GatedMLPWeights(gate_up=first, down=LinearWeights(parts=(down,))) if gated else first
    norm = ((torch.rand(hidden) + 0.5) * gain - offset).to(kind)
    held: Prepared = kernel.bind(NormedWeights(norm=norm, then=stored))
    x, residual = (torch.randn(tokens, hidden * 2 if strided else hidden).to(kind)[:, :hidden] * 3 for _ in range(2))
    y, total = kernel.run(x, residual, held)

    assert torch.equal(total, x + residual)
    assert total.data_ptr() not in (x.data_ptr(), residual.data_ptr())
    rows = total.double() / (total.double().pow(2).mean(1, keepdim=True) + EPS).sqrt() * (norm.double() + offset)
    wanted = rows @ torch.cat([wide(p) for p in parts]).t() + (0 if first.bias is None else first.bias.double())
    if gated:
        gate, up = wanted.chunk(2, 1)
        wanted = (torch.nn.functional.silu(gate) * up) @ wide(down).t()
    assert y.dtype == kind
    assert y.shape == wanted.shape
    assert error(y, wanted) < TOLERANCE[dtype]


SHAPES = st.tuples(st.sampled_from([8, 31, 64, 127, 200]), st.sampled_from([(7,), (64, 33), (31, 32, 65)]))


@settings(max_examples=12, deadline=None)
@given(
    tokens=st.sampled_from([1, 2, 3, 15, 16, 17, 33, 64]),
    shape=SHAPES,
    way=st.sampled_from(TILES),
    dtype=st.sampled_from([DType.FLOAT32, DType.FLOAT16]),
    bias=st.booleans(),
    offset=st.sampled_from([0.0, 1.0]),
)
@example(tokens=17, shape=(127, (31, 32, 65)), way=TILES[2], dtype=DType.FLOAT16, bias=True, offset=0.0)
@example(tokens=64, shape=(64, (64, 33)), way=TILES[3], dtype=DType.FLOAT32, bias=True, offset=1.0)
def test_tiles(
    tokens: int, shape: tuple[int, tuple[int, ...]], way: Tiles, dtype: DType, bias: bool, offset: float
) -> None:
    check(way, tokens, *shape, dtype, bias=bias, offset=offset)


@settings(max_examples=8, deadline=None)
@given(
    tokens=st.integers(1, MOST_TOKENS),
    shape=SHAPES,
    dtype=st.sampled_from([DType.FLOAT32, DType.FLOAT16]),
    bias=st.booleans(),
    offset=st.sampled_from([0.0, 1.0]),
)
def test_gemv(tokens: int, shape: tuple[int, tuple[int, ...]], dtype: DType, bias: bool, offset: float) -> None:
    check(GEMV, tokens, *shape, dtype, bias=bias, offset=offset)


@pytest.mark.parametrize(("way", "tokens"), [(TILES[0], 17), (TILES[1], 16), (GEMV, 3), (GEMV, 1)])
@pytest.mark.parametrize("float8", [False, True])
def test_a_gated_mlp_begins_with_the_norm_and_activates_in_the_same_launch(
    way: NormedWay, tokens: int, float8: bool
) -> None:
    check(way, tokens, 64, (48, 48), DType.FLOAT32, gated=True, float8=float8)


@pytest.mark.parametrize(("way", "tokens"), [(TILES[0], 3), (TILES[3], 17), (GEMV, 2)])
def test_float8_weights_are_widened_and_nothing_is_quantized(way: NormedWay, tokens: int) -> None:
    check(way, tokens, 96, (32, 16), DType.FLOAT32, float8=True, bias=True)


@pytest.mark.parametrize(("way", "tokens"), [(TILES[2], 5), (GEMV, 2)])
def test_rows_may_lie_apart(way: NormedWay, tokens: int) -> None:
    check(way, tokens, 64, (32,), DType.FLOAT32, strided=True)


def test_large_gains_do_not_overflow_in_float16() -> None:
    check(TILES[2], 5, 64, (32,), DType.FLOAT16, gain=8000.0)
    assert shrink_of(torch.tensor([3.0, -17.0]).half(), 0.0) == 1 / 32
    assert shrink_of(torch.tensor([3.0, -17.0]).bfloat16(), 0.0) == 1.0
    assert shrink_of(torch.tensor([0.5]).half(), 0.0) == 1.0


@pytest.mark.parametrize(("way", "tokens"), [(TILES[0], 18), (TILES[1], 3), (TILES[3], 18), (GEMV, 3)])
def test_a_row_that_is_not_a_number_stays_alone(way: NormedWay, tokens: int) -> None:
    spec = spec_of(64, (64,), Dense(stored=DType.FLOAT32), DType.FLOAT32, bias=False, offset=0.0, gated=False)
    kernel = made(add_rms_norm_then(spec, policy_of(way)))
    stored = LinearWeights(parts=(part(64, 64, Dense(stored=DType.FLOAT32)),))
    held = kernel.bind(NormedWeights(norm=torch.ones(64), then=stored))
    x, residual = torch.randn(tokens, 64), torch.randn(tokens, 64)
    clean, clean_total = kernel.run(x, residual, held)
    for bad in (0, 2):
        x2 = x.clone()
        x2[bad, 5] = float("nan")
        y, total = kernel.run(x2, residual, held)
        others = [row for row in range(tokens) if row != bad]
        assert y[bad].isnan().all()
        assert total[bad].isnan().sum() == 1
        assert torch.equal(y[others], clean[others])
        assert torch.equal(total[others], clean_total[others])


def test_the_inputs_are_left_as_they_are_and_split_sums_repeat() -> None:
    spec = spec_of(256, (40,), Dense(stored=DType.FLOAT32), DType.FLOAT32, bias=False, offset=0.0, gated=False)
    kernel = made(add_rms_norm_then(spec, policy_of(TILES[2])))
    stored = LinearWeights(parts=(part(40, 256, Dense(stored=DType.FLOAT32)),))
    held = kernel.bind(NormedWeights(norm=torch.ones(256), then=stored))
    x, residual = torch.randn(20, 256), torch.randn(20, 256)
    kept = x.clone(), residual.clone()
    first = kernel.run(x, residual, held)
    for _ in range(2):
        again = kernel.run(x, residual, held)
        assert torch.equal(again[0], first[0])
        assert torch.equal(again[1], first[1])
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


def test_no_tokens() -> None:
    spec = spec_of(64, (32,), Dense(stored=DType.FLOAT32), DType.FLOAT32, bias=False, offset=0.0, gated=False)
    kernel = made(add_rms_norm_then(spec, policy_of(TILES[0])))
    stored = LinearWeights(parts=(part(32, 64, Dense(stored=DType.FLOAT32)),))
    y, total = kernel.run(
        torch.empty(0, 64), torch.empty(0, 64), kernel.bind(NormedWeights(norm=torch.ones(64), then=stored))
    )
    assert (y.shape, total.shape) == ((0, 32), (0, 64))


def test_a_table_chooses_by_tokens_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a rule's tokens the product normalizes; beyond, the norm has a launch of its own, with the same result."""
    rules: tuple[Rule[NormedWay | None], ...] = (
        Rule(max_tokens=2, way=GEMV),
        Rule(max_tokens=3, way=None),
        Rule(max_tokens=16, way=TILES[0], max_out=64),
    )
    policy = policy_of(None)
    policy = replace(policy, table=replace(policy.table, normed=rules))
    spec = spec_of(64, (64,), Dense(stored=DType.FLOAT32), DType.FLOAT32, bias=False, offset=0.0, gated=False)
    stored = LinearWeights(parts=(part(64, 64, Dense(stored=DType.FLOAT32)),))
    used: list[NormedWay] = []
    launch = normed.normed_product
    monkeypatch.setattr(normed, "normed_product", lambda *given: (used.append(given[2]), launch(*given))[1])
    kernel = made(add_rms_norm_then(spec, policy))
    held = kernel.bind(NormedWeights(norm=torch.ones(64), then=stored))
    reference = OpTable(platform="reference").choose(spec)
    bound = reference.bind(NormedWeights(norm=torch.ones(64), then=stored))
    for tokens in (2, 3, 4, 16, 17):
        x, residual = torch.randn(tokens, 64), torch.randn(tokens, 64)
        for found, wanted in zip(kernel.run(x, residual, held), reference.run(x, residual, bound), strict=True):
            assert error(found, wanted.double()) < 1e-5
    assert used == [GEMV, TILES[0], TILES[0]]
    wide_weight = Weight(weight=torch.zeros(65, 64), scale=None, bias=None)
    assert policy.normed(4, wide_weight) is None


def test_what_does_not_fit_is_left_to_the_parts() -> None:
    dense = Weight(weight=torch.zeros(64, 128, dtype=torch.float16), scale=None, bias=None)
    float8 = Weight(weight=torch.zeros(64, 128).to(torch.float8_e4m3fn), scale=torch.ones(64), bias=None)
    wider = Weight(weight=torch.zeros(1, 32768, dtype=torch.float16), scale=None, bias=None)
    assert policy_of(GEMV).normed(MOST_TOKENS + 1, dense) is None
    assert policy_of(GEMV).normed(1, wider) is None
    assert policy_of(TILES[2]).normed(4, dense, paired=True) is None  # a split sum has no end to activate at
    assert policy_of(replace(TILES[0], widens=False)).normed(4, float8) is None  # it would meet rows in FP8
    assert policy_of(TILES[0]).normed(0, dense) is None
    room = 32 * (32 + 2 * 16) * 2  # one stage: a tile of the weight, of x and of the residual
    limited = replace(policy_of(replace(TILES[0], stages=4)), shared_bytes=2 * room + 16 * 32 * 2)
    way = limited.normed(4, dense)
    assert isinstance(way, Tiles)
    assert way.stages == 2


def test_tables_name_no_such_way_unless_it_was_measured() -> None:
    """Without one a dense product stays apart from its norm, and one way for any batch is kept."""
    spec = spec_of(64, (32,), Dense(stored=DType.FLOAT32), DType.FLOAT32, bias=False, offset=0.0, gated=False)
    assert isinstance(add_rms_norm_then(spec, policy_of(None)), No)
    assert isinstance(add_rms_norm_then(spec, policy_of(GEMV).one_tile()), No)
    table = OpTable(platform="thing")
    register(table, LinearPolicy(table=replace(BANDWIDTH, rules=(Rule(max_tokens=1, way=LIBRARY),), normed=())))
    assert "add_rms_norm +" in table.choose(spec).name
