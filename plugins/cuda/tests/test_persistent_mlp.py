"""Gated MLPs of few tokens on Hopper: which go through one launch, and that a second engine does without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

pytest.importorskip("triton")

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops import persistent_mlp
from tenon_cuda.ops.experimental import kernels_of
from tenon_cuda.ops.persistent_mlp import PersistentMLP
from tenon_cuda.ops.triton_offers import register
from tenon_cuda.ops.warpgroup_gated import WarpgroupGated
from tenon_cuda.options import CUDAOptions
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import Dense, LinearPart, MergedLinearSpec
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, NormedWeights
from tenon_triton.facts import DeviceFacts
from tenon_triton.ops.linear import Weight

pytestmark = pytest.mark.unit
HOPPER = PersistentMLP(
    arch=Arch(9, 0), units=132, shared_bytes=227 << 10, counter=torch.zeros(1, dtype=torch.int64, device="meta")
)


def weights(
    hidden: int = 4096,
    features: int = 14336,
    *,
    float8: bool = False,
    bias: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Weight, Weight]:
    kind = torch.float8_e4m3fn if float8 else dtype

    def one(out: int, inner: int) -> Weight:
        return Weight(
            weight=torch.empty(out, inner, dtype=kind, device="meta"),
            scale=torch.empty(out, device="meta") if float8 else None,
            bias=torch.empty(out, device="meta") if bias else None,
        )

    return one(2 * features, hidden), one(hidden, features)


def spec_of(hidden: int, inner: int) -> GatedMLPSpec:
    def product(width: int, **outputs: int) -> MergedLinearSpec:
        dense = Dense(stored=DType.BFLOAT16)
        parts = tuple(LinearPart(name=name, out_features=out, scheme=dense) for name, out in outputs.items())
        return MergedLinearSpec(in_features=width, parts=parts, dtype=DType.BFLOAT16)

    return GatedMLPSpec(
        gate_up=product(hidden, gate=inner, up=inner), down=product(inner, down=hidden), activation="silu"
    )


def normed_of(spec: GatedMLPSpec) -> AddRMSNormThenSpec:
    norm = RMSNormSpec(hidden=spec.gate_up.in_features, eps=1e-5, dtype=DType.BFLOAT16)
    return AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=norm), then=spec)


def test_it_pays_for_few_tokens() -> None:
    assert [tokens for tokens in range(20) if HOPPER.pays(tokens, *weights())] == [2, 3, 4, 5, 6, 7, 8]
    assert [tokens for tokens in range(20) if HOPPER.pays(tokens, *weights(float8=True))] == [*range(1, 17)]


@pytest.mark.parametrize(
    ("hidden", "features", "half", "float8"),
    [
        (4096, 14336, True, True),  # Llama 8B
        (4096, 12288, True, True),  # Qwen3 8B
        (4096, 11008, True, False),  # Llama 2 7B: 11,008 are no multiple of 512
        (8192, 28672, True, True),  # Llama 70B
        (3584, 18944, False, False),  # Qwen2.5 7B: 112 programs of 132 have work
        (5120, 13824, False, False),  # 160 runs of the second product: a second round for 28 programs
        (2048, 8192, False, False),
        (1024, 3072, False, False),
        (4096, 2048, False, False),  # 128 runs of 16 features for 132 programs, which must all have one
        (4224, 14336, False, False),  # 132 runs of the second product, but x is not in whole steps
        (16384, 53248, False, True),  # Llama 405B: in bfloat16 x leaves no room for weights
    ],
)
def test_it_takes_what_fills_the_device(hidden: int, features: int, half: bool, float8: bool) -> None:
    assert HOPPER.takes(8, *weights(hidden, features)) == half
    assert HOPPER.takes(8, *weights(hidden, features, float8=True)) == float8


def test_it_leaves_to_others_what_it_cannot() -> None:
    assert not HOPPER.takes(8, *weights(bias=True))
    assert not HOPPER.takes(8, *weights(dtype=torch.float16))
    assert not HOPPER.takes(16, *weights(16384, 53248, float8=True)), "sixteen leave no room, eight do"
    assert not replace(HOPPER, counter=None).takes(8, *weights()), "another engine has the device's counter"
    for arch in (Arch(8, 0), Arch(8, 9), Arch(10, 0), Arch(12, 0)):
        assert not replace(HOPPER, arch=arch).takes(8, *weights())
    assert not replace(HOPPER, shared_bytes=99 << 10).takes(8, *weights())


def test_the_kernel_is_written_for_what_its_launch_says() -> None:
    kernel = kernels_of(persistent_mlp.KERNELS)
    assert kernel is not None
    for ours, its in (
        (persistent_mlp.OUTPUTS, kernel.HALF),
        (persistent_mlp.GRAIN, kernel.GRAIN),
        (persistent_mlp.STAGE, kernel.STAGE_BYTES),
        (persistent_mlp.MOST_PROGRAMS, kernel.MOST_PROGRAMS),
        (persistent_mlp.STEP, kernel.X_PARTS.value * kernel.PANELS.value * kernel.LINE_BYTES.value),
        (persistent_mlp.DOWN_STEP, 2 * kernel.PANELS.value * kernel.LINE_BYTES.value),
    ):
        assert ours == getattr(its, "value", its)


@pytest.mark.parametrize("behind_norm", [False, True])
def test_offers_bring_it(behind_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the table of kernels, an MLP of two tokens goes to `run` with what the norm left, one of three does not."""
    taken: list[tuple[int, int]] = []

    def run(self: PersistentMLP, x: Tensor, gate_up: Weight, down: Weight) -> Tensor:
        taken.append((x.shape[0], gate_up.weight.shape[0]))
        gate, up = linear(x.float(), gate_up.weight.float()).chunk(2, dim=1)
        return linear(silu(gate) * up, down.weight.float()).to(x.dtype)

    monkeypatch.setattr(PersistentMLP, "takes", lambda self, tokens, gate_up, down: tokens == 2)
    monkeypatch.setattr(PersistentMLP, "run", run)
    mlp = spec_of(64, 96)
    spec = normed_of(mlp) if behind_norm else mlp
    table = OpTable(platform="cuda")
    facts = DeviceFacts(compute_units=132, shared_bytes=227 << 10, fp8=True)
    many = WarpgroupGated(arch=Arch(9, 0), units=132)
    register(table, Device(), facts, CUDAOptions(), gated_rows=many, gated_tokens=HOPPER)
    kernel, reference = table.choose(spec), OpTable(platform="reference").choose(spec)
    assert "few in one launch" in kernel.name
    torch.manual_seed(0)
    tensors = [{"weight": torch.randn(out, inner).bfloat16() / 8} for out, inner in ((96, 64), (96, 64), (64, 96))]
    held: Any = GatedMLPWeights(gate_up=LinearWeights(parts=tensors[:2]), down=LinearWeights(parts=tensors[2:]))
    held = NormedWeights(norm=torch.rand(64).bfloat16() + 0.5, then=held) if behind_norm else held
    inputs = [torch.randn(2, 64).bfloat16() for _ in range(1 + behind_norm)]
    found, wanted = kernel.run(*inputs, kernel.bind(held)), reference.run(*inputs, reference.bind(held))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=0.1, rtol=0.05)
    kernel.run(*(torch.cat([x, x[:1]]) for x in inputs), kernel.bind(held))
    assert taken == [(2, 192)], "three are another kernel's"


def test_a_triton_without_the_language_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_mlp, "kernels_of", lambda name: None)
    persistent_mlp.fits.cache_clear()
    assert not HOPPER.takes(8, *weights())
    persistent_mlp.fits.cache_clear()
