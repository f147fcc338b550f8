"""Gated MLPs of many rows on Hopper: what their kernel is asked for, why not, and from how many rows on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops.triton_offers import register
from tenon_cuda.ops.warpgroup_gated import WarpgroupGated
from tenon_cuda.options import CUDAOptions
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import Dense, FP8Channel, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable
from tenon_triton.facts import DeviceFacts

pytestmark = pytest.mark.unit
FACTS = DeviceFacts(compute_units=132, shared_bytes=227 << 10, fp8=True)
HOPPER = WarpgroupGated(arch=Arch(9, 0), units=132)
PLAIN = CUDAOptions()
DENSE = Dense(stored=DType.BFLOAT16)


def spec_of(
    hidden: int = 4096, inner: int = 14336, scheme: WeightScheme = DENSE, dtype: DType = DType.BFLOAT16, **fields: Any
) -> GatedMLPSpec:
    parts = tuple(LinearPart(name=name, out_features=inner, scheme=scheme) for name in ("gate", "up"))
    last = (LinearPart(name="down", out_features=hidden, scheme=scheme),)
    return GatedMLPSpec(
        gate_up=MergedLinearSpec(in_features=hidden, parts=parts, dtype=dtype, bias=fields.get("bias", False)),
        down=MergedLinearSpec(in_features=inner, parts=last, dtype=dtype),
        activation=fields.get("activation", "silu"),
    )


def normed_of(spec: GatedMLPSpec | MergedLinearSpec) -> AddRMSNormThenSpec:
    hidden = (spec.gate_up if isinstance(spec, GatedMLPSpec) else spec).in_features
    norm = RMSNormSpec(hidden=hidden, eps=1e-5, dtype=DType.BFLOAT16)
    return AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=norm), then=spec)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (spec_of(bias=True), "adds no bias"),
        (spec_of(hidden=4100), "multiples of 8, not 4100 and 14336"),
        (spec_of(inner=14340), "multiples of 8, not 4096 and 14340"),
        (spec_of(activation="gelu_tanh"), "not gelu_tanh"),
        (spec_of(dtype=DType.FLOAT16), "not float16"),
        (spec_of(dtype=DType.FLOAT32), "not float32"),
    ],
)
def test_it_says_why_not(spec: GatedMLPSpec, reason: str) -> None:
    refused = HOPPER.refused(spec)
    assert refused is not None and reason in str(refused)


def test_it_takes_gated_mlps_of_hopper() -> None:
    assert HOPPER.refused(spec_of()) is None
    assert HOPPER.refused(spec_of(hidden=1032, inner=3080)) is None
    for arch in (Arch(8, 0), Arch(8, 9), Arch(10, 0), Arch(12, 0)):
        assert str(arch) in str(replace(HOPPER, arch=arch).refused(spec_of()))


def test_it_pays_where_rows_fill_its_rounds() -> None:
    measured = {0: False, 1: False, 64: False, 256: False, 512: False, 1024: True, 2048: True, 4096: True, 8192: True}
    assert {rows: HOPPER.pays(rows, 14336) for rows in measured} == measured
    assert [rows for rows in range(640, 1025, 64) if HOPPER.pays(rows, 14336)] == [832, 896, 960, 1024]
    assert HOPPER.pays(951, 14336) and not HOPPER.pays(950, 14336)  # 924 places for tiles in 7 rounds: 90 % are 831.6
    assert not HOPPER.pays(128, 132 * 128), "a full round of few rows is the library's"
    assert HOPPER.pays(512, 132 * 128) and not HOPPER.pays(512, 132 * 128 + 8)


def chosen(
    spec: Spec, settings: CUDAOptions = PLAIN, many: WarpgroupGated = HOPPER, **options: bool
) -> tuple[str, dict[str, str]]:
    """The kernel's name, and why others did not serve."""
    table = OpTable(platform="cuda", **options)
    register(table, Device(), FACTS, settings, gated_rows=many)
    name = table.choose(spec).name
    return name, dict(table.choices[-1].refused)


@pytest.mark.parametrize(
    ("spec", "offer"),
    [
        (spec_of(), "triton.gated_mlp, many rows on warp groups"),
        (normed_of(spec_of()), "triton.add_rms_norm_then, many rows on warp groups"),
    ],
)
def test_it_is_asked_first(spec: Spec, offer: str) -> None:
    name, refused = chosen(spec)
    assert name.endswith("activation fused, many rows on warp groups") and not refused
    name, refused = chosen(spec, CUDAOptions(quantize="fp8"))
    assert "warp groups" not in name and "not FP8" in refused[offer]
    name, refused = chosen(spec, many=replace(HOPPER, arch=Arch(8, 0)))
    assert "warp groups" not in name and "sm_80" in refused[offer]
    name, refused = chosen(spec, batch_invariant=True)
    assert "warp groups" not in name and "batch-invariant" in refused[offer]


def test_checkpoints_in_fp8_and_other_products_are_left_to_the_library() -> None:
    _, refused = chosen(spec_of(scheme=FP8Channel()))
    assert "not FP8" in refused["triton.gated_mlp, many rows on warp groups"]
    _, refused = chosen(normed_of(spec_of().gate_up))
    assert "no gated MLP" in refused["triton.add_rms_norm_then, many rows on warp groups"]
