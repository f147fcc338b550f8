"""Integer weights as GGML blocks mean what their scheme says; what blocks cannot hold is expanded."""

from __future__ import annotations

import pytest
import torch

from tenon_cpu import native
from tenon_cpu.ops.group_blocks import block_type, blocks_of
from tenon_cpu.ops.native_weights import Packer, merged_linear
from tenon_platforms.dtypes import DType
from tenon_platforms.formats.gguf_reference import dequantize
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.linear import FP8Channel, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.quantized import FP8Block, Int8Channel, IntGroups
from tenon_platforms.ops.weights import LinearWeights, PartTensors

pytestmark = pytest.mark.unit
INTEGERS = [
    *(
        IntGroups(bits=bits, group_size=size, zeros=zeros, ordered=ordered)
        for bits in (4, 8)
        for size in (0, 32, 64, 128)
        for zeros in (False, True)
        for ordered in (False, True)
    ),
    Int8Channel(),
]


def part_of(scheme: WeightScheme, rows: int, columns: int) -> PartTensors:
    random = torch.Generator().manual_seed(0)
    if isinstance(scheme, IntGroups):
        groups = scheme.num_groups(columns)
        shape = (rows, columns // 2) if scheme.bits == 4 else (rows, columns)
        held = {
            "weight": torch.randint(0, 256, shape, generator=random, dtype=torch.uint8),
            "scale": (torch.rand(rows, groups, generator=random) * 0.02 + 0.001).half(),
        }
        if scheme.zeros:
            held["zero"] = torch.randint(0, 2**scheme.bits, (rows, groups), generator=random, dtype=torch.uint8)
        if scheme.ordered:
            held["group"] = (torch.randperm(columns, generator=random) // (scheme.group_size or columns)).int()
        return held
    scale = torch.rand(rows, generator=random) * 0.01 + 0.001
    if isinstance(scheme, Int8Channel):
        codes = torch.randint(-128, 128, (rows, columns), generator=random, dtype=torch.int8)
        return {"weight": codes, "scale": scale.half().float()}
    codes = (torch.randn(rows, columns, generator=random) * 60).to(torch.float8_e4m3fn)
    return {"weight": codes, "scale": scale[None, :1] if isinstance(scheme, FP8Block) else scale}


@pytest.mark.parametrize("scheme", INTEGERS, ids=lambda scheme: scheme.id)
def test_blocks_mean_the_same_to_the_bit(scheme: WeightScheme) -> None:
    kind, held = block_type(scheme, 192), part_of(scheme, 5, 192)
    expands = isinstance(scheme, IntGroups) and (scheme.ordered or (scheme.bits == 8 and scheme.zeros))
    assert (kind is None) == expands
    blocks = blocks_of(scheme, held, 192)
    if kind is None:
        assert blocks is None
        return
    assert blocks is not None
    assert torch.equal(dequantize(blocks, kind, torch.float64), dense_weight(scheme, held, torch.float64))


def test_a_scale_that_is_no_float16_is_not_rounded_to_one() -> None:
    scheme = IntGroups(bits=4, group_size=32)
    held = part_of(scheme, 4, 64)
    assert blocks_of(scheme, {**held, "scale": held["scale"].bfloat16()}, 64) is not None
    assert blocks_of(scheme, {**held, "scale": torch.full((4, 2), 1e-7)}, 64) is None
    assert blocks_of(scheme, {**held, "scale": torch.full((4, 2), 1e6)}, 64) is None
    assert block_type(scheme, 48) is None


@pytest.mark.skipif(native.library() is None, reason="the native library is not built")
@pytest.mark.parametrize("gguf", ["auto", "dequantize"])
@pytest.mark.parametrize("scheme", [*INTEGERS, FP8Channel(), FP8Block()], ids=lambda scheme: scheme.id)
def test_products_are_those_of_the_weight(scheme: WeightScheme, gguf: str) -> None:
    parts = tuple(LinearPart(name=name, out_features=out, scheme=scheme) for name, out in (("q", 48), ("k", 20)))
    spec = MergedLinearSpec(in_features=128, parts=parts, dtype=DType.FLOAT32, bias=True)
    weights = LinearWeights(
        parts=tuple(part_of(scheme, one.out_features, 128) for one in parts), bias=torch.randn(spec.out_features)
    )
    kernel = merged_linear(spec, Packer(gguf=gguf))
    assert isinstance(kernel, Kernel)
    in_blocks = gguf == "auto" and block_type(scheme, 128) is not None
    assert kernel.native == ("native" if in_blocks else "dequantize")
    held = kernel.bind(weights)
    wide = torch.cat([dense_weight(scheme, one, torch.float64) for one in weights.parts])
    for tokens in (1, 3, 40):
        x = torch.randn(tokens, 128)
        wanted = x.double() @ wide.T + weights.bias.double()  # type: ignore[union-attr]
        size = x.double().norm(dim=1, keepdim=True) * wide.norm(dim=1)
        assert ((kernel.run(x, held) - wanted).abs() <= 2e-4 * size + 1e-5).all()
