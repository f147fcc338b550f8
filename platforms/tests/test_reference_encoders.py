"""Reference kernels of encoders and pooling against torch's own in float64."""

from __future__ import annotations

import pytest
import torch

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import Dense, LinearPart, MergedLinearSpec
from tenon_platforms.ops.mlp import MLPSpec
from tenon_platforms.ops.norm import LayerNormSpec
from tenon_platforms.ops.pooling import MeanPoolSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import LinearWeights, MLPWeights, NormWeights


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_layer_norm(dtype: DType) -> None:
    torch.manual_seed(0)
    kind = torch.float32 if dtype is DType.FLOAT32 else torch.bfloat16
    x = (torch.randn(5, 48) * 3 + 7).to(kind)  # a mean far from zero: sums of squares alone would lose it
    weight, bias = torch.randn(48).to(kind), torch.randn(48).to(kind)
    kernel = OpTable(platform="reference").choose(LayerNormSpec(hidden=48, eps=1e-5, dtype=dtype))
    found = kernel.run(x, NormWeights(weight=weight, bias=bias))
    wide = torch.nn.functional.layer_norm(x.double(), (48,), weight.double(), bias.double(), 1e-5)
    assert found.dtype == kind
    torch.testing.assert_close(found.double(), wide, atol=1e-5 if kind == torch.float32 else 4e-2, rtol=1e-2)


def test_mean_pool_sees_no_padding() -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 8)
    x[9:] = float("nan")  # padding tokens, whose rows are the last one
    rows = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3, 3], dtype=torch.int32)
    starts = torch.tensor([0, 3, 4, 9, 9], dtype=torch.int32)
    kernel = OpTable(platform="reference").choose(MeanPoolSpec(hidden=8, dtype=DType.FLOAT32))
    found = kernel.run(x, rows, starts, torch.tensor([9, 3, 3], dtype=torch.int32))
    expected = torch.stack([x[:3].mean(0), x[3], x[4:9].mean(0), torch.zeros(8)])
    torch.testing.assert_close(found, expected)


def test_mlp() -> None:
    torch.manual_seed(0)
    sizes = {"up": (16, 40), "down": (40, 16)}
    specs, weights, wide = {}, {}, {}
    for name, (width, features) in sizes.items():
        part = LinearPart(name=name, out_features=features, scheme=Dense(stored=DType.FLOAT32))
        specs[name] = MergedLinearSpec(in_features=width, parts=(part,), dtype=DType.FLOAT32, bias=True)
        weight, bias = torch.randn(features, width), torch.randn(features)
        weights[name] = LinearWeights(parts=({"weight": weight},), bias=bias)
        wide[name] = (weight.double(), bias.double())
    kernel = OpTable(platform="reference").choose(MLPSpec(up=specs["up"], down=specs["down"], activation="gelu"))
    x = torch.randn(7, 16)
    found = kernel.run(x, kernel.bind(MLPWeights(up=weights["up"], down=weights["down"])))
    linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
    expected = linear(gelu(linear(x.double(), *wide["up"])), *wide["down"])
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-4)
