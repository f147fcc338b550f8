"""Slabs: pieces are zero, aligned and apart; a slab lives as long as a tensor in it and no longer."""

from __future__ import annotations

import gc

import pytest
import torch

from tenon_cpu.memory import ALIGNMENT, SLAB_BYTES, Slabs, zeros

pytestmark = pytest.mark.unit


def test_pieces_are_zero_aligned_and_apart() -> None:
    slabs = Slabs()
    pieces = [slabs.take(size) for size in (1, 63, 64, 65, SLAB_BYTES + 1, 1000, SLAB_BYTES // 2, SLAB_BYTES)]
    for number, piece in enumerate(pieces, 1):
        assert piece.data_ptr() % ALIGNMENT == 0
        assert not piece.any()
        piece.fill_(number)
    for number, piece in enumerate(pieces, 1):
        assert bool((piece == number).all())


def test_pieces_outlive_the_slab_and_the_slab_does_not_outlive_them() -> None:
    slabs = Slabs()
    first = slabs.take(100)
    address = first.data_ptr()
    assert slabs.take(100).data_ptr() - address == 128
    first.fill_(7)
    gc.collect()
    assert bool((first == 7).all())
    assert slabs._slab is not None and slabs._slab() is not None
    del first
    gc.collect()
    assert slabs._slab() is None
    assert not slabs.take(100).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_are_tensors_of_their_own(dtype: torch.dtype) -> None:
    made = zeros(3, (5, 7), dtype)
    assert [one.shape for one in made] == [(5, 7)] * 3
    made[1].fill_(1)
    assert not made[0].any() and not made[2].any()
    assert zeros(2, (0, 7), dtype)[1].shape == (0, 7)
