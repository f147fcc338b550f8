"""Linears in every way of the table, dense and FP8, and gated MLPs, against float64 and the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear import Dense, FP8Channel, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.linear_reference import quantize_fp8
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.quantized import FP8Static
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, NormedWeights, PartTensors
from tenon_triton import compiling
from tenon_triton.ops import linear, normed
from tenon_triton.ops.float8 import Float8Rows
from tenon_triton.ops.gated_mlp import gated_mlp
from tenon_triton.ops.gemv import MOST_TOKENS
from tenon_triton.ops.linear import LinearPolicy, Weight, merged_linear
from tenon_triton.ops.linear_table import BANDWIDTH, LIBRARY, Gemv, LinearTable, NormedGemv, Rule, Tiles, Way
from tenon_triton.ops.norm import add_rms_norm, add_rms_norm_float8
from tenon_triton.ops.offers import register
from tenon_triton.ops.tiles import tiles

pytestmark = pytest.mark.unit
FULL, HALF = Dense(stored=DType.FLOAT32), Dense(stored=DType.FLOAT16)
WAYS: list[Way] = [
    LIBRARY,
    Gemv(rows=1, block=64),
    Gemv(rows=4, block=128),
    Tiles(m=16, n=32, k=32, splits=1),
    Tiles(m=16, n=64, k=32, splits=3),
    Tiles(m=32, n=64, k=32, splits=2, swap=True),
    Tiles(m=16, n=32, k=32, swap=True, widens=True),
    Tiles(m=16, n=32, k=64, splits=2, widens=True),
    Tiles(m=16, n=32, k=32, swap=True, quantizes=True),
    Tiles(m=16, n=32, k=64, splits=2, quantizes=True),
]


def one_way(way: Way, **fields: bool) -> LinearPolicy:
    rules = (Rule(max_tokens=2**31, way=way), Rule(max_tokens=2**31, way=Tiles(k=32)))
    table = LinearTable(rules=rules, pair_tokens=8)
    return LinearPolicy(table=table, float8_table=table, **fields)


def spec_of(inner: int, outs: dict[str, int], scheme: WeightScheme, dtype: DType, *, bias: bool = False):  # type: ignore[no-untyped-def]
    parts = tuple(LinearPart(name=name, out_features=out, scheme=scheme) for name, out in outs.items())
    return MergedLinearSpec(in_features=inner, parts=parts, dtype=dtype, bias=bias)


def part(out: int, inner: int, scheme: WeightScheme) -> PartTensors:
    weight = torch.randn(out, inner) * 0.3
    if isinstance(scheme, (FP8Channel, FP8Static)):
        values, scale = quantize_fp8(weight)
        return {"weight": values, "scale": scale, "input_scale": torch.tensor([0.25])}
    return {"weight": weight.half() if scheme == HALF else weight}


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-12))


def made(kernel: Kernel | No) -> Kernel:
    assert isinstance(kernel, Kernel)
    return kernel


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.sampled_from([0, 1, 2, 3, 4, 5, 15, 16, 17, 33]),
    outs=st.sampled_from([(7,), (64, 33), (31, 32, 65)]),
    inner=st.sampled_from([1, 31, 64, 127, 257]),
    way=st.sampled_from(WAYS),
    scheme=st.sampled_from([FULL, HALF]),
    bias=st.booleans(),
)
def test_every_way(tokens: int, outs: tuple[int, ...], inner: int, way: Way, scheme: Dense, bias: bool) -> None:
    dtype = scheme.stored
    spec = spec_of(inner, {f"p{i}": out for i, out in enumerate(outs)}, scheme, dtype, bias=bias)
    parts = tuple(part(out, inner, scheme) for out in outs)
    weights = LinearWeights(parts=parts, bias=torch.randn(sum(outs)) if bias else None)
    kernel = made(linear.merged_linear(spec, one_way(way)))
    x = torch.randn(tokens, inner).to(torch.float16 if scheme == HALF else torch.float32)
    found = kernel.run(x, kernel.bind(weights))
    wide = torch.cat([p["weight"] for p in parts]).double()
    wanted = x.double() @ wide.t() + (0 if weights.bias is None else weights.bias.to(x.dtype).double())
    assert found.shape == wanted.shape
    assert found.dtype == x.dtype
    assert error(found, wanted) < (1e-5 if scheme == FULL else 2e-3)


def gated_of(hidden: int, inner: int, scheme: WeightScheme) -> tuple[GatedMLPSpec, GatedMLPWeights]:
    """A gated MLP and random weights of it."""
    gate_up = spec_of(hidden, {"gate": inner, "up": inner}, scheme, DType.FLOAT32)
    down = spec_of(inner, {"down": hidden}, scheme, DType.FLOAT32)
    first = LinearWeights(parts=(part(inner, hidden, scheme), part(inner, hidden, scheme)))
    weights = GatedMLPWeights(gate_up=first, down=LinearWeights(parts=(part(hidden, inner, scheme),)))
    return GatedMLPSpec(gate_up=gate_up, down=down, activation="silu"), weights


@settings(max_examples=6, deadline=None)
@given(
    tokens=st.sampled_from([0, 1, 3, 7, 17]),
    way=st.sampled_from(WAYS[1:]),
    scheme=st.sampled_from([FULL, FP8Channel(), FP8Static()]),
    online=st.booleans(),
)
def test_gated_mlp(tokens: int, way: Way, scheme: WeightScheme, online: bool) -> None:
    hidden = 64
    spec, weights = gated_of(hidden, 96, scheme)
    kernel = made(gated_mlp(spec, one_way(way, float8=True, online_float8=online)))
    reference = OpTable(platform="reference").choose(spec)
    x = torch.randn(tokens, hidden)
    found, wanted = kernel.run(x, kernel.bind(weights)), reference.run(x, reference.bind(weights))
    assert found.shape == wanted.shape
    exact = scheme == FULL and not online
    assert error(found, wanted) < (1e-5 if exact else 0.2)  # FP8: 4 % a product, more where the interpreter rounds


@pytest.mark.parametrize("swap", [False, True])
def test_tokens_quantized_in_the_product_have_a_scale_a_tile(swap: bool) -> None:
    inner, out, k = 150, 48, 64
    tensors = part(out, inner, FP8Channel())
    weight, scale = tensors["weight"], tensors["scale"].float().reshape(-1)
    x = (torch.randn(5, inner) * 100).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    x[:, ::k] = 448.0  # the largest of every tile, so that its scale is what the tile is multiplied by here:
    x *= (
        torch.tensor([2.0**-20, 1.0, 0.0, 0.25, 64.0])[:, None]
        * torch.tensor([1.0, 2.0**-9, 8.0]).repeat_interleave(k)[:inner]
    )
    found = tiles(x, weight, Tiles(m=16, n=32, k=k, swap=swap, quantizes=True), scale=scale)
    wanted = x.double() @ (weight.double() * scale.double()[:, None]).t()
    for row, true in zip(found, wanted, strict=True):
        assert error(row, true) < 1e-5
    assert not found[2].any()


class FromTwelve:
    """What a platform brings for many rows: here from twelve on."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def pays(self, tokens: int, features: int, *, float8: bool) -> bool:
        assert features == 96, "a half of the product"
        return tokens >= 12

    def run(self, x: Tensor | Float8Rows, weight: Weight) -> Tensor:
        assert isinstance(x, Float8Rows) == (weight.scale is not None), "quantized where the weight is"
        values = x.values.float() * x.scale[:, None] if isinstance(x, Float8Rows) else x
        scale = 1.0 if weight.scale is None else weight.scale[:, None]
        self.rows.append(values.shape[0])
        gate, up = (values @ (weight.weight.float() * scale).t()).chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("behind_norm", [False, True])
def test_many_rows_go_through_what_a_platform_brings(behind_norm: bool, float8: bool) -> None:
    torch.manual_seed(0)
    hidden = 64
    product, weights = gated_of(hidden, 96, FULL)
    many, policy = FromTwelve(), one_way(WAYS[3], float8=float8, online_float8=float8)
    if behind_norm:
        policy = replace(policy, table=replace(policy.table, normed=(Rule(max_tokens=1, way=NormedGemv()),)))
    norm = RMSNormSpec(hidden=hidden, eps=1e-5, dtype=DType.FLOAT32)
    spec = AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=norm), then=product) if behind_norm else product
    held = NormedWeights(norm=torch.rand(hidden) + 0.5, then=weights) if behind_norm else weights

    def composite(brought: FromTwelve | None) -> Kernel:
        return made(
            normed.add_rms_norm_then(spec, policy, brought)
            if isinstance(spec, AddRMSNormThenSpec)
            else gated_mlp(spec, policy, brought)
        )

    kernel = composite(many)
    reference = composite(None) if float8 else OpTable(platform="reference").choose(spec)
    for tokens in (1, 8, 11, 12, 40):
        inputs = [torch.randn(tokens, hidden) for _ in range(1 + behind_norm)]
        found, wanted = kernel.run(*inputs, kernel.bind(held)), reference.run(*inputs, reference.bind(held))
        for one, other in zip(found, wanted, strict=True):
            assert error(one, other) < (0.02 if float8 else 1e-5), tokens  # FP8: a last bit may quantize to a neighbour
    assert many.rows == [12, 40]


def test_a_rehearsal_knows_how_few_tokens_have_kernels_of_their_own() -> None:
    assert compiling.FEW_TOKENS == MOST_TOKENS


def test_a_rehearsal_asks_for_what_a_platform_brings_at_any_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    product, weights = gated_of(64, 96, FULL)
    many = FromTwelve()
    kernel = made(gated_mlp(product, one_way(WAYS[3]), many))
    held, inputs = kernel.bind(weights), torch.randn(11, 64)
    plain = kernel.run(inputs, held)
    monkeypatch.setattr("tenon_triton.ops.gated_mlp.is_rehearsal", lambda: True)
    assert torch.equal(kernel.run(inputs, held), plain)
    assert many.rows == [11]


class UpToThree:
    """What a platform brings for a whole MLP of few rows: here up to three."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def pays(self, tokens: int, gate_up: Weight, down: Weight) -> bool:
        assert gate_up.weight.shape == (2 * 96, 64) and down.weight.shape == (64, 96)
        return 0 < tokens <= 3

    def run(self, x: Tensor | Float8Rows, gate_up: Weight, down: Weight) -> Tensor:
        inner = FromTwelve().run(x, gate_up)
        self.rows.append(inner.shape[0])
        return inner @ (down.weight.float() * (1.0 if down.scale is None else down.scale[:, None])).t()


@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("behind_norm", [False, True])
def test_few_rows_go_through_what_a_platform_brings_for_both_products(behind_norm: bool, float8: bool) -> None:
    torch.manual_seed(0)
    product, weights = gated_of(64, 96, FULL)
    few, policy = UpToThree(), one_way(WAYS[3], float8=float8, online_float8=float8)
    rules = (Rule(max_tokens=8, way=NormedGemv(rows=2, turns=2, warps=2)),)  # which it comes before
    policy = replace(
        policy, table=replace(policy.table, normed=rules), float8_table=replace(policy.float8_table, normed=rules)
    )
    norm = RMSNormSpec(hidden=64, eps=1e-5, dtype=DType.FLOAT32)
    spec = AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=norm), then=product) if behind_norm else product
    held = NormedWeights(norm=torch.rand(64) + 0.5, then=weights) if behind_norm else weights

    def composite(brought: UpToThree | None) -> Kernel:
        return made(
            normed.add_rms_norm_then(spec, policy, few=brought)
            if isinstance(spec, AddRMSNormThenSpec)
            else gated_mlp(spec, policy, few=brought)
        )

    kernel = composite(few)
    reference = composite(None) if float8 else OpTable(platform="reference").choose(spec)
    for tokens in (1, 3, 4):
        inputs = [torch.randn(tokens, 64) for _ in range(1 + behind_norm)]
        found, wanted = kernel.run(*inputs, kernel.bind(held)), reference.run(*inputs, reference.bind(held))
        for one, other in zip(found, wanted, strict=True):
            assert error(one, other) < (0.1 if float8 else 1e-5), tokens
    assert few.rows == [1, 3]


def test_float8_products_are_no_coarser_than_their_type() -> None:
    """torch's library gives bfloat16: other types go through tiles, whatever the table says."""
    torch.manual_seed(0)
    spec = spec_of(64, {"p": 48}, FP8Channel(), DType.FLOAT32)
    weights = part(48, 64, FP8Channel())
    kernel = made(linear.merged_linear(spec, one_way(LIBRARY, float8=True)))
    x = 448 * torch.randint(-1, 2, (20, 64)) * torch.exp2(-torch.randint(0, 4, (20, 64)))  # rounding leaves these
    x[:, 0] = 448
    wide = weights["weight"].double() * weights["scale"].double()[:, None]
    assert error(kernel.run(x, kernel.bind(LinearWeights(parts=(weights,)))), x.double() @ wide.t()) < 1e-5


def test_split_sums_are_the_same_every_time_and_leave_their_counters_at_zero() -> None:
    way = Tiles(m=16, n=32, k=32, splits=4)
    kernel = made(linear.merged_linear(spec_of(256, {"p": 64}, FULL, DType.FLOAT32), one_way(way)))
    bound = kernel.bind(LinearWeights(parts=(part(64, 256, FULL),)))
    x = torch.randn(20, 256)
    first = kernel.run(x, bound)
    assert all(torch.equal(kernel.run(x, bound), first) for _ in range(2))
    from tenon_triton.ops.tiles import _counters

    assert not _counters(x.device, 0).any()


def test_one_tile_is_batch_invariant() -> None:
    policy = LinearPolicy().one_tile()
    kernel = made(linear.merged_linear(spec_of(130, {"p": 70}, FULL, DType.FLOAT32), policy))
    assert kernel.flags.batch_invariant
    bound, x = kernel.bind(LinearWeights(parts=(part(70, 130, FULL),))), torch.randn(70, 130)
    together = kernel.run(x, bound)
    for row in (0, 3, 69):
        assert torch.equal(kernel.run(x[row : row + 1], bound)[0], together[row])


def test_the_table_takes_the_first_rule_that_fits() -> None:
    assert isinstance(BANDWIDTH.way(1, 4096, 4096), Gemv)
    assert BANDWIDTH.way(16, 4096, 4096) != BANDWIDTH.way(16, 28672, 4096)
    assert BANDWIDTH.way(1000, 4096, 4096) == LIBRARY


def test_tiles_take_as_many_stages_as_fit() -> None:
    way = Tiles(m=16, n=64, k=512, splits=2, stages=3, swap=True)
    stage = 512 * (64 + 16)
    assert way.fitted(3 * stage, weight_bytes=1, x_bytes=1) == way
    assert way.fitted(3 * stage - 1, weight_bytes=1, x_bytes=1).stages == 2
    assert way.fitted(1, weight_bytes=1, x_bytes=1).stages == 1
    table = LinearTable(rules=(Rule(max_tokens=8, way=Tiles(stages=4)),), pair_tokens=8)
    policy = LinearPolicy(table=table, shared_bytes=4 * 128 * (64 + 16) * 2)
    weight = Weight(weight=torch.zeros(64, 128, dtype=torch.float16), scale=None, bias=None)
    alone, paired = policy.way(8, weight), policy.pairs(8, weight)
    assert isinstance(alone, Tiles)
    assert isinstance(paired, Tiles)
    assert (alone.stages, paired.stages) == (4, 2)
    assert policy.pairs(9, weight) is None


def test_offers_serve_without_the_reference() -> None:
    table = OpTable(platform="thing", strict=True)
    register(table, LinearPolicy())
    spec = spec_of(64, {"p": 64}, FULL, DType.FLOAT32)
    assert table.choose(spec).name == "by table"
    invariant = OpTable(platform="thing", strict=True, batch_invariant=True)
    register(invariant, LinearPolicy())
    assert "one tile" in invariant.choose(spec).name


def test_what_it_refuses() -> None:
    found = linear.merged_linear(spec_of(8, {"p": 8}, FULL, DType.FLOAT64), LinearPolicy())
    assert "float64" in str(found)


@pytest.mark.parametrize("way", [LIBRARY, Gemv(rows=1, block=64), Tiles(m=16, n=32, k=32, splits=1), WAYS[6]])
@pytest.mark.parametrize("ffn", [False, True])
def test_a_norm_hands_its_rows_over_as_the_product_reads_them(
    way: Way, ffn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quantized in the norm's launch where they are multiplied in FP8, and nowhere else: the parts' result."""
    torch.manual_seed(0)
    hidden, policy = 64, one_way(way, float8=True)
    if ffn:
        product: MergedLinearSpec | GatedMLPSpec = GatedMLPSpec(
            gate_up=spec_of(hidden, {"gate": 48, "up": 48}, FP8Channel(), DType.FLOAT32),
            down=spec_of(48, {"down": hidden}, FP8Channel(), DType.FLOAT32),
            activation="silu",
        )
        stored: LinearWeights | GatedMLPWeights = GatedMLPWeights(
            gate_up=LinearWeights(parts=tuple(part(48, hidden, FP8Channel()) for _ in range(2))),
            down=LinearWeights(parts=(part(hidden, 48, FP8Channel()),)),
        )
    else:
        product = spec_of(hidden, {"q": 32, "k": 16}, FP8Channel(), DType.FLOAT32)
        stored = LinearWeights(parts=(part(32, hidden, FP8Channel()), part(16, hidden, FP8Channel())))
    add = AddRMSNormSpec(norm=RMSNormSpec(hidden=hidden, eps=1e-5, dtype=DType.FLOAT32))
    x, residual, gain = torch.randn(3, hidden), torch.randn(3, hidden), torch.rand(hidden) + 0.5
    quantized: list[int] = []
    monkeypatch.setattr(
        normed, "add_rms_norm_float8", lambda *given: (quantized.append(1), add_rms_norm_float8(*given))[1]
    )
    kernel = made(normed.add_rms_norm_then(AddRMSNormThenSpec(norm=add, then=product), policy))
    held = kernel.bind(NormedWeights(norm=gain, then=stored))
    y, total = kernel.run(x, residual, held)
    parts = made(gated_mlp(product, policy) if isinstance(product, GatedMLPSpec) else merged_linear(product, policy))
    rows, wanted_total = made(add_rms_norm(add)).run(x, residual, gain)
    assert torch.equal(total, wanted_total)
    assert error(y, parts.run(rows, parts.bind(stored))) < 0.02  # a tie may round another way
    first = held[1][0] if ffn else held[1]
    assert bool(quantized) == (not policy.keeps(3, first))


def test_a_norm_before_a_dense_product_stays_two_ops() -> None:
    add = AddRMSNormSpec(norm=RMSNormSpec(hidden=64, eps=1e-5, dtype=DType.FLOAT32))
    spec = AddRMSNormThenSpec(norm=add, then=spec_of(64, {"q": 32}, FULL, DType.FLOAT32))
    assert isinstance(normed.add_rms_norm_then(spec, one_way(LIBRARY, float8=True)), No)
