"""Linears: cuBLAS's offer against the reference, and the arithmetic of the online W8A8."""

from __future__ import annotations

import pytest
import torch

from tenon_cuda.ops import fp8, linear
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear import Dense, FP8Channel, GGUFBlocks, LinearPart, MergedLinearSpec
from tenon_platforms.ops.linear_reference import merged_linear
from tenon_platforms.ops.quantized import FP8Static
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import LinearWeights

pytestmark = pytest.mark.unit


def spec_of(
    *, parts: tuple[str, ...] = ("q", "k"), width: int = 64, dtype: DType = DType.BFLOAT16, bias: bool = False
) -> MergedLinearSpec:
    return MergedLinearSpec(
        in_features=width,
        parts=tuple(LinearPart(name=name, out_features=32, scheme=Dense(stored=dtype)) for name in parts),
        dtype=dtype,
        bias=bias,
    )


def weights_of(spec: MergedLinearSpec, seed: int = 0) -> LinearWeights:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, spec.dtype.value)
    parts = tuple(
        {"weight": torch.randn(part.out_features, spec.in_features, generator=generator).to(dtype)}
        for part in spec.parts
    )
    return LinearWeights(parts=parts, bias=torch.randn(spec.out_features).to(dtype) if spec.bias else None)


@pytest.mark.parametrize("bias", [False, True])
def test_cublas_is_the_reference(bias: bool) -> None:
    spec = spec_of(dtype=DType.FLOAT32, bias=bias)
    weights, x = weights_of(spec), torch.randn(5, 64)
    kernel, reference = linear.cublas(spec), merged_linear(spec, OpTable(platform="cuda"))
    assert isinstance(kernel, Kernel)
    found = kernel.run(x, kernel.bind(weights))
    torch.testing.assert_close(found, reference.run(x, reference.bind(weights)))
    assert kernel.native == "native"
    assert not kernel.flags.batch_invariant


def test_gguf_weights_are_said_to_be_expanded() -> None:
    part = LinearPart(name="q", out_features=32, scheme=GGUFBlocks(type="Q8_0"))
    kernel = linear.cublas(MergedLinearSpec(in_features=64, parts=(part,), dtype=DType.BFLOAT16))
    assert isinstance(kernel, Kernel)
    assert kernel.native == "dequantize"


def test_rows_are_quantized_to_three_bits_of_mantissa() -> None:
    x = torch.randn(7, 256) * torch.logspace(-3, 3, 7)[:, None]
    x[3] = 0
    quantized, scale = fp8.quantize_rows(x)
    assert (quantized.dtype, scale.shape) == (torch.float8_e4m3fn, (7, 1))
    back = quantized.float() * scale
    assert ((back - x).abs() <= x.abs() / 16 + scale / 512).all()  # half a unit in the last place, or of a subnormal
    assert scale[3] == 1 and not back[3].any()


def test_w8a8_is_its_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(bias=True)
    weights, x = weights_of(spec), torch.randn(5, 64, dtype=torch.bfloat16)
    kernel = fp8.w8a8(spec)
    assert isinstance(kernel, Kernel)
    prepared = kernel.bind(weights)
    assert (prepared.weight.dtype, prepared.scale.shape) == (torch.float8_e4m3fn, (1, 64))
    assert prepared.nbytes == 64 * 64 + 4 * 64 + 2 * 64

    def product(a, b, *, scale_a, scale_b, bias, out_dtype, use_fast_accum):  # type: ignore[no-untyped-def]
        assert a.is_contiguous() and b.t().is_contiguous() and use_fast_accum
        return ((a.float() @ b.float()) * scale_a * scale_b + bias.float()).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    found = kernel.run(x, prepared)
    full, bias = linear.joined_weight(spec, weights)
    exact = x.double() @ full.double().t() + bias.double()  # type: ignore[union-attr]
    error = (found.double() - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.05


def fp8_spec(dtype: DType = DType.BFLOAT16) -> MergedLinearSpec:
    parts = (
        LinearPart(name="q", out_features=32, scheme=FP8Static()),
        LinearPart(name="k", out_features=16, scheme=FP8Channel()),
    )
    return MergedLinearSpec(in_features=64, parts=parts, dtype=dtype)


def test_weights_of_a_checkpoint_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fp8_spec()
    parts = tuple(
        {
            "weight": (torch.randn(part.out_features, 64) * 60).to(fp8.FP8),
            "scale": torch.rand(part.out_features) + 0.5,
            "input_scale": torch.tensor([0.1]),
        }
        for part in spec.parts
    )
    kernel = fp8.w8a8(spec, online=False)
    assert isinstance(kernel, Kernel)
    prepared = kernel.bind(LinearWeights(parts=parts))
    assert torch.equal(prepared.weight[:32].float(), parts[0]["weight"].float())
    assert torch.equal(prepared.scale[0, 32:], parts[1]["scale"])
    monkeypatch.setattr(
        torch,
        "_scaled_mm",
        lambda a, b, *, scale_a, scale_b, bias, **_: (a.float() @ b.float()) * scale_a * scale_b,
    )
    x = torch.tensor([[448.0, 2.0, -0.5] + [0.0] * 61], dtype=torch.bfloat16)  # codes already
    reference = linear.cublas(fp8_spec(DType.FLOAT32))
    assert isinstance(reference, Kernel)
    assert reference.native == "dequantize"
    wanted = reference.run(x.float(), reference.bind(LinearWeights(parts=parts)))
    torch.testing.assert_close(kernel.run(x, prepared).float(), wanted, rtol=1e-5, atol=1e-3)
    assert isinstance(fp8.w8a8(spec_of(), online=False), No)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (spec_of(parts=("head",)), "the head is not quantized"),
        (spec_of(dtype=DType.FLOAT32), "not float32"),
        (spec_of(width=40), "multiples of 16"),
    ],
)
def test_w8a8_refuses_what_it_does_not_serve(spec: MergedLinearSpec, reason: str) -> None:
    answer = fp8.w8a8(spec)
    assert isinstance(answer, No)
    assert reason in str(answer)


def test_what_was_asked_for_comes_first_and_the_head_falls_through() -> None:
    table = OpTable(platform="cuda")
    table.offer(MergedLinearSpec, "cublas", linear.cublas)
    table.offer(MergedLinearSpec, "w8a8", fp8.w8a8, priority=1)
    assert table.choose(spec_of()).name == "w8a8, quantized at load"
    assert table.choose(spec_of(parts=("head",))).name == "cublas"
