"""Specs: what they require is derived, and equal specs are equal everywhere."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tenon_platforms.dtypes import DType
from tenon_platforms.model import AttentionMixer, GatedMLP, Head, Layer, ModelSpec, NormSpec
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import Dense, GGUFBlocks, LinearPart, MergedLinearSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import RopeScaling, RopeSpec
from tenon_platforms.ops.spec import Spec, feature

pytestmark = pytest.mark.unit
ATTENTION = AttentionSpec(
    num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
)


def test_defaults_require_nothing() -> None:
    assert ATTENTION.requires == frozenset()


@pytest.mark.parametrize(
    ("changes", "required"),
    [
        ({"sliding_window": 5}, {"attention.sliding_window"}),
        ({"soft_cap": 30.0, "sinks": True}, {"attention.soft_cap", "attention.sinks"}),
        ({"causal": False}, {"attention.bidirectional"}),
        ({"tree_mask": True}, {"attention.tree_mask"}),
    ],
)
def test_other_values_are_the_requirement(changes: dict[str, object], required: set[str]) -> None:
    assert dataclasses.replace(ATTENTION, **changes).requires == required


def test_a_composite_requires_what_its_parts_do() -> None:
    norm = RMSNormSpec(hidden=8, eps=1e-6, dtype=DType.FLOAT32, weight_offset=1.0)
    assert AddRMSNormSpec(norm=norm).requires == {"rms_norm.weight_offset"}
    rope = RopeSpec(head_dim=8, rotary_dim=8, base=1e4, max_positions=9, interleaved=True)
    mixer = AttentionMixer(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, rope=rope)
    layer = Layer(
        mixer=mixer,
        ffn=GatedMLP(intermediate=8, activation="silu"),
        pre_mixer=NormSpec(eps=1e-6, weight_offset=1.0),
        pre_ffn=NormSpec(eps=1e-6),
    )
    model = ModelSpec(
        architecture="X",
        vocab_size=8,
        hidden=8,
        layers=(layer,),
        final_norm=NormSpec(eps=1e-6),
        head=Head(soft_cap=3.0),
        max_positions=9,
    )
    assert model.requires == {"rms_norm.weight_offset", "rope.interleaved", "head.soft_cap"}


@dataclass(frozen=True, kw_only=True)
class Grown(Spec):
    """A spec as a later contract might have it."""

    op: ClassVar[str] = "grown"
    width: int
    bias: bool = feature(False, "grown.bias")


def test_fingerprints_tell_specs_apart_and_are_the_same_in_every_process() -> None:
    assert ATTENTION.fingerprint() == dataclasses.replace(ATTENTION).fingerprint()
    others = [
        dataclasses.replace(ATTENTION, scale=0.5),
        dataclasses.replace(ATTENTION, dtype=DType.FLOAT16),
        dataclasses.replace(ATTENTION, sliding_window=1),
        Grown(width=4),
    ]
    assert len({one.fingerprint() for one in (ATTENTION, *others)}) == 5
    code = (
        "from tenon_platforms.ops.attention import AttentionSpec; from tenon_platforms.dtypes import DType;"
        "print(AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, dtype=DType.FLOAT32,"
        " kv_dtype=DType.FLOAT32).fingerprint()); import sys; assert 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == ATTENTION.fingerprint()


def test_scheme_kinds_with_equal_fields_differ() -> None:
    def part(scheme: Dense | GGUFBlocks) -> MergedLinearSpec:
        parts = (LinearPart(name="q", out_features=4, scheme=scheme),)
        return MergedLinearSpec(in_features=4, parts=parts, dtype=DType.FLOAT32)

    assert part(GGUFBlocks(type="Q8_0")).fingerprint() != part(GGUFBlocks(type="Q4_0")).fingerprint()
    assert part(Dense(stored=DType.FLOAT16)) != part(Dense(stored=DType.BFLOAT16))
    assert (Dense(stored=DType.BFLOAT16).id, GGUFBlocks(type="Q4_K").id) == ("dense-bfloat16", "gguf-q4_k")


def test_specs_are_frozen_hashable_and_summarised_by_what_differs() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ATTENTION.num_heads = 5  # type: ignore[misc]
    assert {ATTENTION: 1}[dataclasses.replace(ATTENTION)] == 1
    text = dataclasses.replace(ATTENTION, sliding_window=7).summary()
    assert text.startswith("attention(") and "sliding_window=7" in text and "soft_cap" not in text
    spec = RopeSpec(head_dim=8, rotary_dim=8, base=1e4, max_positions=9, scaling=RopeScaling(kind="linear", factor=2.0))
    assert spec.to_dict()["scaling"]["spec"] == "RopeScaling"
