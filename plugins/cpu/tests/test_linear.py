"""Merged linears against float64 of the same stored weights, for every way they are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_cpu.isa import CPU
from tenon_cpu.ops import half_weights, int4_weights
from tenon_cpu.ops.half_weights import HalfWeight
from tenon_cpu.ops.int4_weights import Int4Weight
from tenon_cpu.ops.linear import FullWeight, WeightPolicy
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import Dense, GGUFBlocks, LinearPart, MergedLinearSpec
from tenon_platforms.ops.weights import LinearWeights
from tenon_platforms.torch_dtypes import to_torch

pytestmark = pytest.mark.unit
needs_half = pytest.mark.skipif(not half_weights.is_available(), reason="no packed float16 product on this CPU")


def spec_of(outs: tuple[int, ...], width: int, scheme: Any, dtype: DType = DType.FLOAT32, bias: bool = False) -> Any:
    parts = tuple(LinearPart(name=f"p{i}", out_features=out, scheme=scheme) for i, out in enumerate(outs))
    return MergedLinearSpec(in_features=width, parts=parts, dtype=dtype, bias=bias)


def run(table: Any, spec: Any, parts: list[dict[str, Tensor]], x: Tensor, bias: Tensor | None = None) -> Any:
    kernel = table.choose(spec)
    assert not table.choices[-1].on_reference
    weight = kernel.bind(LinearWeights(parts=tuple(parts), bias=bias))
    return kernel.run(x, weight), weight


def assert_near(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, unit: float) -> None:
    """unit: the relative rounding of an operand; sums of `in` such errors grow as its root."""
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    scale = x.double().norm(dim=-1)[:, None] * weight.double().norm(dim=-1) + 1e-12
    scale += 0 if bias is None else bias.double().abs()
    assert float(((found.double() - wanted).abs() / scale).max()) < unit


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.sampled_from([0, 1, 2, 3, 16, 64, 65, 130]),
    outs=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    width=st.integers(1, 130),
    stored=st.sampled_from([DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16]),
    kept=st.sampled_from(["auto", "float32"]),
    bias=st.booleans(),
)
def test_dense_weights_lose_nothing(
    make_table: Any, tokens: int, outs: list[int], width: int, stored: DType, kept: str, bias: bool
) -> None:
    parts = [torch.randn(out, width).mul_(0.05).to(to_torch(stored)) for out in outs]
    spec = spec_of(tuple(outs), width, Dense(stored=stored), bias=bias)
    x, b = torch.randn(tokens, width), torch.randn(sum(outs)) if bias else None
    found, _ = run(make_table(weights=kept), spec, [{"weight": part} for part in parts], x, b)
    assert found.shape == (tokens, sum(outs))
    if tokens:
        assert_near(found, x, torch.cat(parts), b, 2e-6)


@needs_half
@pytest.mark.parametrize(
    ("stored", "kept", "kind"),
    [
        (DType.BFLOAT16, "auto", HalfWeight),
        (DType.FLOAT16, "auto", HalfWeight),
        (DType.FLOAT32, "auto", FullWeight),
        (DType.FLOAT32, "float16", HalfWeight),
        (DType.BFLOAT16, "float32", FullWeight),
    ],
)
def test_half_only_where_it_is_exact_or_asked_for(make_table: Any, stored: DType, kept: str, kind: type) -> None:
    part = torch.randn(48, 64).to(to_torch(stored))
    x = torch.randn(3, 64)
    found, weight = run(make_table(weights=kept), spec_of((48,), 64, Dense(stored=stored)), [{"weight": part}], x)
    assert isinstance(weight, kind)
    assert_near(found, x, part, None, 2.0**-11)


@needs_half
def test_weights_beyond_float16_stay_float32(make_table: Any) -> None:
    part = torch.full((16, 16), 1e6, dtype=torch.bfloat16)
    table = make_table(weights="float16")
    _, weight = run(table, spec_of((16,), 16, Dense(stored=DType.BFLOAT16)), [{"weight": part}], torch.ones(1, 16))
    assert isinstance(weight, FullWeight)


@needs_half
def test_rounding_is_measured() -> None:
    assert half_weights.rounding(torch.randn(8, 64).bfloat16()) <= half_weights.EXACT
    assert half_weights.rounding(torch.randn(8, 64)) > 1e-5
    assert half_weights.rounding(torch.tensor([[float("nan")]])) == float("inf")


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("tokens", [1, 5])
def test_half_activations(make_table: Any, dtype: DType, tokens: int) -> None:
    kind = to_torch(dtype)
    part, x = torch.randn(32, 64).to(kind), torch.randn(tokens, 64).to(kind)
    found, _ = run(make_table(), spec_of((32,), 64, Dense(stored=dtype), dtype), [{"weight": part}], x)
    assert found.dtype == kind
    assert_near(found, x, part, None, 2.0**-7)


def q4_blocks(type_name: str, out: int, width: int) -> tuple[Tensor, Tensor]:
    """Random blocks of a 4-bit type, uint8 [out, bytes], and the weight they mean, float64, written out by hand."""
    groups = width // 32
    scale, low = torch.rand(out, groups).half() * 0.1, torch.randn(out, groups).half() * 0.1
    values = torch.randint(0, 16, (out, groups, 32), dtype=torch.uint8)
    nibbles = values[..., :16] | (values[..., 16:] << 4)
    heads = [scale, low] if type_name == "Q4_1" else [scale]
    head = torch.stack(heads, dim=-1).contiguous().view(torch.uint8)
    blocks = torch.cat((head, nibbles), dim=-1).flatten(1)
    shift = low.double() if type_name == "Q4_1" else -8 * scale.double()
    return blocks, (values.double() * scale.double()[..., None] + shift[..., None]).flatten(1)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("tokens", [1, 4, 17])
@pytest.mark.parametrize(("outs", "width"), [((16,), 32), ((32, 16), 96), ((64,), 256)])
def test_four_bits_in_place(make_table: Any, type_name: str, tokens: int, outs: tuple[int, ...], width: int) -> None:
    made = [q4_blocks(type_name, out, width) for out in outs]
    spec, x = spec_of(outs, width, GGUFBlocks(type=type_name)), torch.randn(tokens, width)
    found, weight = run(make_table(gguf="inplace"), spec, [{"blocks": blocks} for blocks, _ in made], x)
    assert isinstance(weight, Int4Weight)
    assert weight.nbytes < sum(outs) * width  # below one byte a weight
    assert_near(found, x, torch.cat([w for _, w in made]), None, 2.0**-7)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
def test_blocks_are_split_exactly(type_name: str) -> None:
    blocks, wanted = q4_blocks(type_name, 8, 64)
    values, scale_zero = int4_weights.split_blocks(blocks, type_name)
    scale, zero = scale_zero.double().repeat_interleave(32, dim=1).unbind(-1)
    torch.testing.assert_close((values.double() - 8) * scale + zero, wanted, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(("type_name", "out", "width"), [("Q6_K", 16, 256), ("Q4_1", 15, 32), ("Q4_0", 16, 48)])
def test_what_cannot_stay_at_four_bits_says_why(type_name: str, out: int, width: int) -> None:
    assert int4_weights.refuses(type_name, out, width)


def test_a_cpu_with_bfloat16_keeps_it() -> None:
    policy = WeightPolicy(cpu=CPU(name="x", machine="x86_64", flags=frozenset({"amx_bf16"}), physical_cores=1))
    assert policy.computes_in(DType.BFLOAT16) == DType.BFLOAT16
    kept = policy.keep((Dense(stored=DType.BFLOAT16),), torch.ones(4, 4).bfloat16(), None, DType.BFLOAT16)
    assert isinstance(kept, FullWeight)
    assert kept.weight.dtype == torch.bfloat16


def test_a_type_without_a_product_is_refused(make_table: Any) -> None:
    table = make_table()
    table.choose(spec_of((4,), 4, Dense(stored=DType.FLOAT32), DType.FLOAT64))
    assert table.choices[0].on_reference
