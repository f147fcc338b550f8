"""Gated MLPs of few tokens on Hopper: which go through one launch, and that a second engine does without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tenon_cuda.capabilities import Arch
from tenon_cuda.ops import persistent_mlp
from tenon_cuda.ops.persistent_mlp import PersistentMLP
from tenon_triton.ops.linear import Weight

pytestmark = pytest.mark.unit
HOPPER = PersistentMLP(
    arch=Arch(9, 0), units=132, shared_bytes=227 << 10, counter=torch.zeros(1, dtype=torch.int64, device="meta")
)


def weights(
    hidden: int = 4096, features: int = 14336, *, float8: bool = False, bias: bool = False
) -> tuple[Weight, Weight]:
    kind = torch.float8_e4m3fn if float8 else torch.bfloat16

    def one(out: int, inner: int) -> Weight:
        return Weight(
            weight=torch.empty(out, inner, dtype=kind, device="meta"),
            scale=torch.empty(out, device="meta") if float8 else None,
            bias=torch.empty(out, device="meta") if bias else None,
        )

    return one(2 * features, hidden), one(hidden, features)


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
        (4224, 1024, False, False),  # fewer features than the programs have places for
        (4256, 14336, False, False),
        (16384, 53248, False, False),  # Llama 405B: x leaves no room for weights
    ],
)
def test_it_takes_what_fills_the_device(hidden: int, features: int, half: bool, float8: bool) -> None:
    assert HOPPER.takes(*weights(hidden, features)) == half
    assert HOPPER.takes(*weights(hidden, features, float8=True)) == float8


def test_it_leaves_to_others_what_it_cannot() -> None:
    assert not HOPPER.takes(*weights(bias=True))
    assert not replace(HOPPER, counter=None).takes(*weights()), "another engine has the device's counter"
    for arch in (Arch(8, 0), Arch(8, 9), Arch(10, 0), Arch(12, 0)):
        assert not replace(HOPPER, arch=arch).takes(*weights())
    assert not replace(HOPPER, shared_bytes=99 << 10).takes(*weights())


def test_a_triton_without_the_language_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_mlp, "kernels_of", lambda name: None)
    assert not HOPPER.takes(*weights())
