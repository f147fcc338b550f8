"""FP8 weights in blocks against float64: few tokens keep what they have, many are quantized a run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear import LinearPart, MergedLinearSpec
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.quantized import FP8Block
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import LinearWeights, PartTensors
from tenon_triton.ops import blocks
from tenon_triton.ops.linear import LinearPolicy
from tenon_triton.ops.offers import register

pytestmark = pytest.mark.unit
POLICY = LinearPolicy(float8=True)


def spec_of(outs: tuple[int, ...], inner: int, scheme: FP8Block, *, bias: bool = False) -> MergedLinearSpec:
    parts = tuple(LinearPart(name=f"p{i}", out_features=out, scheme=scheme) for i, out in enumerate(outs))
    return MergedLinearSpec(in_features=inner, parts=parts, dtype=DType.FLOAT32, bias=bias)


def part(out: int, inner: int, scheme: FP8Block) -> PartTensors:
    weight = (torch.randn(out, inner) * 60).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-out // scheme.rows), -(-inner // scheme.columns)) * 0.01 + 0.001
    return {"weight": weight, "scale": scale}


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    tokens=st.sampled_from([0, 1, 5, 17, 65, 70]),
    outs=st.sampled_from([(33,), (64, 31), (130, 16, 16)]),
    runs=st.integers(1, 3),
    scheme=st.sampled_from([FP8Block(), FP8Block(rows=16, columns=32)]),
    bias=st.booleans(),
    invariant=st.booleans(),
)
def test_blocks(tokens: int, outs: tuple[int, ...], runs: int, scheme: FP8Block, bias: bool, invariant: bool) -> None:
    inner = runs * scheme.columns
    spec = spec_of(outs, inner, scheme, bias=bias)
    weights = LinearWeights(
        parts=tuple(part(out, inner, scheme) for out in outs), bias=torch.randn(sum(outs)) if bias else None
    )
    kernel = blocks.merged_linear(spec, POLICY.one_tile() if invariant else POLICY)
    assert isinstance(kernel, Kernel)
    # codes at a power of two with the largest one in every run: quantized without loss, also where rounding is another
    x = (torch.randn(tokens, runs, scheme.columns) * 60).to(torch.float8_e4m3fn).float() / 64
    x[..., 0] = 448 / 64
    x = x.flatten(1)
    found = kernel.run(x, kernel.bind(weights))
    wide = torch.cat([dense_weight(scheme, held, torch.float64) for held in weights.parts])
    wanted = x.double() @ wide.T + (0 if weights.bias is None else weights.bias.double())
    assert ((found - wanted).abs() <= 1e-6 * (x.double().norm(dim=1, keepdim=True) * wide.norm(dim=1) + 1)).all()
    if invariant and tokens > 1:
        assert torch.equal(kernel.run(x[1:2], kernel.bind(weights))[0], found[1])


@pytest.mark.parametrize(
    ("spec", "policy", "reason"),
    [
        (spec_of((16,), 100, FP8Block(columns=50)), POLICY, "runs of 50"),
        (spec_of((16,), 100, FP8Block()), POLICY, "100 in runs of 128"),
        (spec_of((16,), 128, FP8Block()), LinearPolicy(), "no 8-bit float products"),
    ],
)
def test_what_it_refuses(spec: MergedLinearSpec, policy: LinearPolicy, reason: str) -> None:
    answer = blocks.merged_linear(spec, policy)
    assert isinstance(answer, No)
    assert reason in str(answer)


def test_a_feed_forward_in_blocks_is_its_parts_and_without_fp8_it_is_expanded() -> None:
    down = MergedLinearSpec(in_features=128, parts=spec_of((128,), 128, FP8Block()).parts, dtype=DType.FLOAT32)
    spec = GatedMLPSpec(gate_up=spec_of((128, 128), 128, FP8Block()), down=down, activation="silu")
    names = []
    for policy in (POLICY, LinearPolicy()):
        table = OpTable(platform="thing", strict=True)
        register(table, policy)
        table.choose(spec)
        names.append({choice.kernel.name for choice in table.choices})
    assert "FP8 blocks" in names[0]
    assert names[1] == {"activation fused"}
