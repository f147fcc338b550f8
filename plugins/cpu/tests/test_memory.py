"""Slabs: pieces are zero, aligned and apart; a slab lives as long as a tensor in it and no longer."""

from __future__ import annotations

import gc

import pytest
import torch

from tenon_cpu.memory import ALIGNMENT, SLAB_BYTES, Slabs, zeros
from tenon_cpu.native_attention import NativeAttention
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec

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
def test_zeros_are_memory_of_their_own(dtype: torch.dtype) -> None:
    first, second = zeros((5, 7), dtype), zeros((5, 7), dtype)
    assert (first.shape, first.dtype, first.data_ptr() % ALIGNMENT) == ((5, 7), dtype, 0)
    first.fill_(1)
    assert not second.any()
    assert zeros((0, 7), dtype).shape == (0, 7)


def test_the_layers_of_a_block_are_neighbours() -> None:
    """So that a few blocks are a few large pages, and not one a layer."""
    spec = AttentionSpec(
        num_heads=2, num_kv_heads=1, head_dim=64, scale=1.0, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
    )
    caches = NativeAttention(spec).allocate(100, 64, 30)
    block = 2 * 64 * 64
    assert [cache.data_ptr() - caches[0].data_ptr() for cache in caches] == [4 * block * i for i in range(30)]
    assert all(cache.shape == (100, 1, 2, 64 * 64) and cache.stride(0) == 30 * block for cache in caches)
