"""A mixture of experts against float64, sorted and unsorted, at shapes around the tiles' edges."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.linear import Dense
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.moe_reference import moe_layer as reference_moe
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import MoEWeights
from tenon_triton.ops import moe

pytestmark = pytest.mark.unit


def compare(tokens: int, num_experts: int, top_k: int, hidden: int, inner: int, renormalize: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scheme = Dense(stored=DType.FLOAT32)
    spec = MoESpec(
        hidden=hidden,
        intermediate=inner,
        num_experts=num_experts,
        top_k=top_k,
        renormalize=renormalize,
        activation="silu",
        gate=scheme,
        up=scheme,
        down=scheme,
        dtype=DType.FLOAT32,
    )

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.5

    weights = MoEWeights(
        router=draw(num_experts, hidden),
        gate={"weight": draw(num_experts, inner, hidden)},
        up={"weight": draw(num_experts, inner, hidden)},
        down={"weight": draw(num_experts, hidden, inner)},
    )
    x = draw(tokens, hidden)
    kernel = moe.moe_layer(spec)
    assert isinstance(kernel, Kernel)
    found = kernel.run(x, kernel.bind(weights))
    reference = reference_moe(spec, OpTable(platform="reference"))
    wanted = reference.run(x, reference.bind(weights))
    assert found.shape == wanted.shape
    if tokens:
        assert float((found - wanted).norm() / wanted.norm().clamp_min(1e-9)) < 2e-5


@settings(max_examples=6, deadline=None)
@given(
    tokens=st.sampled_from([0, 1, 2, 7, 16, 17, 33]),
    experts=st.sampled_from([(1, 1), (3, 2), (8, 3), (16, 4), (60, 6)]),
    hidden=st.sampled_from([24, 64, 65]),
    inner=st.sampled_from([16, 67]),
    renormalize=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_mixture_is_the_references(
    tokens: int, experts: tuple[int, int], hidden: int, inner: int, renormalize: bool, seed: int
) -> None:
    compare(tokens, experts[0], experts[1], hidden, inner, renormalize, seed)


def test_wider_tiles() -> None:
    compare(90, 2, 2, 32, 16, True, 5)
    assert moe.rows_of_tile(180, 2) == 64


@given(choices=st.lists(st.integers(0, 4), min_size=1, max_size=150), m=st.sampled_from([16, 32]))
@settings(max_examples=8, deadline=None)
def test_sorting_fills_whole_groups(choices: list[int], m: int) -> None:
    order, owner = moe._sorted(torch.tensor(choices, dtype=torch.int32), 5, m)
    seen: list[int] = []
    for tile, expert in enumerate(owner.tolist()):
        held = [a for a in order[tile * m : tile * m + m].tolist() if expert >= 0 and a < len(choices)]
        assert all(choices[a] == expert for a in held)
        seen += held
    assert sorted(seen) == list(range(len(choices)))
    assert all(seen[i] < seen[i + 1] for i in range(len(seen) - 1) if choices[seen[i]] == choices[seen[i + 1]])


def test_what_it_refuses() -> None:
    scheme = Dense(stored=DType.FLOAT32)
    spec = MoESpec(hidden=8, intermediate=8, num_experts=2, top_k=1, renormalize=True, activation="swish", gate=scheme,
                   up=scheme, down=scheme, dtype=DType.FLOAT32)  # fmt: skip
    assert "swish" in str(moe.moe_layer(spec))
