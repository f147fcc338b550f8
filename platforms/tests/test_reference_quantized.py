"""Reference kernels of quantized schemes against numpy, element by element as their docstrings say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import WeightUse
from tenon_platforms.ops.linear import Dense, FP8Channel, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel, IntGroups
from tenon_platforms.ops.quantized_reference import quantize_int8, rounded_input
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import LinearWeights, MoEWeights, PartTensors

pytestmark = pytest.mark.unit
FP8 = torch.float8_e4m3fn


def fp8_codes(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=random) * 100).clamp(-448, 448).to(FP8)


def group_part(scheme: IntGroups, rows: int, columns: int) -> tuple[PartTensors, np.ndarray]:
    """A part's tensors, and its weight by loops over elements."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 2**scheme.bits, (rows, columns))
    count = scheme.num_groups(columns)
    scale = rng.uniform(0.01, 0.1, (rows, count)).astype(np.float16)
    zero = rng.integers(0, 2**scheme.bits, (rows, count))
    group = rng.permutation(np.arange(columns) // (scheme.group_size or columns))
    weight = np.zeros((rows, columns))
    for o in range(rows):
        for i in range(columns):
            g = group[i] if scheme.ordered else i // (scheme.group_size or columns)
            middle = zero[o, g] if scheme.zeros else 2 ** (scheme.bits - 1)
            weight[o, i] = float(scale[o, g]) * (codes[o, i] - middle)
    packed = codes if scheme.bits == 8 else codes[:, 0::2] + 16 * codes[:, 1::2]
    tensors = {"weight": torch.tensor(packed, dtype=torch.uint8), "scale": torch.tensor(scale)}
    if scheme.zeros:
        tensors["zero"] = torch.tensor(zero, dtype=torch.uint8)
    if scheme.ordered:
        tensors["group"] = torch.tensor(group, dtype=torch.int32)
    return tensors, weight


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [0, 32, 64])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_integer_groups(bits: int, group_size: int, zeros: bool, ordered: bool) -> None:
    scheme = IntGroups(bits=bits, group_size=group_size, zeros=zeros, ordered=ordered)
    tensors, weight = group_part(scheme, 5, 128)
    np.testing.assert_array_equal(dense_weight(scheme, tensors, torch.float64).numpy(), weight)
    stacked = {name: torch.stack((held, held)) for name, held in tensors.items()}
    np.testing.assert_array_equal(dense_weight(scheme, stacked, torch.float64)[1].numpy(), weight)


def test_ids_name_what_differs() -> None:
    assert IntGroups(bits=4, group_size=128, zeros=True, ordered=True).id == "int4-group128-zeros-ordered"
    assert IntGroups(bits=8, group_size=0).id == "int8-group-row"


def test_blocks_at_ragged_edges() -> None:
    weight = fp8_codes(130, 200)
    scale = torch.rand(2, 2) + 0.5
    found = dense_weight(FP8Block(), {"weight": weight, "scale": scale}, torch.float64)
    for o, i in ((0, 0), (127, 127), (128, 127), (127, 128), (129, 199)):
        assert found[o, i] == weight[o, i].double() * scale[o // 128, i // 128].double()


def test_int8_rounds_ties_to_even_and_keeps_zeros() -> None:
    codes, scale = quantize_int8(torch.tensor([[127.0, 2.5, 3.5, -127.0], [0, 0, 0, 0]]))
    assert codes.tolist() == [[127, 2, 4, -127], [0, 0, 0, 0]]
    assert scale.tolist() == [1.0, 1.0]


def test_a_static_scale_clamps_and_a_block_has_a_scale_of_its_own() -> None:
    x = torch.tensor([[1.0, 3000.0, -0.1]])
    assert rounded_input(FP8Static(), x, torch.tensor([2.0])).tolist() == [[1.0, 896.0, -0.1015625]]
    wide = torch.cat((torch.full((1, 128), 448e-6), torch.full((1, 2), 448.0)), dim=1)
    torch.testing.assert_close(rounded_input(FP8Block(), wide), wide, rtol=1e-6, atol=0)


def parts_of(scheme: WeightScheme, rows: int, columns: int, seed: int) -> PartTensors:
    random = torch.Generator().manual_seed(seed)
    if isinstance(scheme, Dense):
        return {"weight": torch.randn(rows, columns, generator=random)}
    scale = torch.rand(rows, generator=random) * 0.01 + 0.001
    if isinstance(scheme, Int8Channel):
        codes = torch.randint(-127, 128, (rows, columns), generator=random, dtype=torch.int8)
        return {"weight": codes, "scale": scale}
    held = {"weight": fp8_codes(rows, columns, seed), "scale": scale}
    if isinstance(scheme, FP8Static):
        held["input_scale"] = torch.tensor([0.01 * (seed + 1)])
    return held


@pytest.mark.parametrize(
    "schemes",
    [
        (FP8Static(), FP8Static()),
        (Int8Channel(), Int8Channel()),
        (FP8Channel(), Dense(stored=DType.FLOAT32), Dense(stored=DType.FLOAT32)),
        (Dense(stored=DType.FLOAT32), FP8Static(), Int8Channel()),
    ],
)
@pytest.mark.parametrize("invariant", [False, True])
def test_every_part_sees_activations_as_its_scheme_rounds_them(
    schemes: tuple[WeightScheme, ...], invariant: bool
) -> None:
    spec = MergedLinearSpec(
        in_features=48,
        parts=tuple(LinearPart(name=f"p{i}", out_features=8 + i, scheme=one) for i, one in enumerate(schemes)),
        dtype=DType.FLOAT32,
        bias=True,
    )
    parts = tuple(parts_of(one, 8 + i, 48, i) for i, one in enumerate(schemes))
    bias, x = torch.randn(spec.out_features), torch.randn(6, 48)
    kernel = OpTable(platform="reference", batch_invariant=invariant).choose(spec)
    found = kernel.run(x, kernel.bind(LinearWeights(parts=parts, bias=bias), WeightUse(op="merged_linear", name="p")))
    wanted = [
        rounded_input(one, x, held.get("input_scale")).double() @ dense_weight(one, held, torch.float64).T
        for one, held in zip(schemes, parts, strict=True)
    ]
    torch.testing.assert_close(found.double(), torch.cat(wanted, dim=1) + bias, rtol=1e-4, atol=1e-4)
    assert kernel.native == "emulated"


@pytest.mark.parametrize("scheme", [FP8Static(), FP8Channel(), Int8Channel()])
def test_experts_round_their_activations_too(scheme: WeightScheme) -> None:
    spec = MoESpec(
        hidden=32, intermediate=16, num_experts=2, top_k=1, renormalize=True, activation="silu", gate=scheme,
        up=scheme, down=scheme, dtype=DType.FLOAT32,
    )  # fmt: skip

    def stack(rows: int, columns: int, seed: int) -> PartTensors:
        each = [parts_of(scheme, rows, columns, seed + index) for index in range(2)]
        raw = {name: [part[name] for part in each] for name in each[0]}
        return {
            name: torch.stack([one.view(torch.uint8) for one in held]).view(FP8)
            if held[0].dtype == FP8
            else torch.stack(held)
            for name, held in raw.items()
        }

    gate, up, down = stack(16, 32, 0), stack(16, 32, 2), stack(32, 16, 4)
    router = torch.randn(2, 32)
    kernel = OpTable(platform="reference").choose(spec)
    held = kernel.bind(MoEWeights(router=router, gate=gate, up=up, down=down))
    x = torch.randn(7, 32)
    found = kernel.run(x, held)

    def product(x: torch.Tensor, stacked: PartTensors, expert: int) -> torch.Tensor:
        part = {name: value[expert] for name, value in stacked.items()}
        return rounded_input(scheme, x, part.get("input_scale")) @ dense_weight(scheme, part, torch.float32).T

    for row in range(7):
        one = x[row : row + 1]
        expert = int((one @ router.T).argmax())
        inner = torch.nn.functional.silu(product(one, gate, expert)) * product(one, up, expert)
        torch.testing.assert_close(found[row : row + 1], product(inner, down, expert), rtol=2e-3, atol=2e-3)
