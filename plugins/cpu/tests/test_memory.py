"""Slabs: pieces are zero, aligned and apart; a slab lives as long as a tensor in it and no longer."""

from __future__ import annotations

import gc

import pytest
import torch

from tenon_cpu.device import CPUDevice
from tenon_cpu.memory import ALIGNMENT, LARGE_PAGE, SLAB_BYTES, Slabs
from tenon_cpu.native_attention import NativeAttention
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.pools import Pool

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
def test_a_cache_begins_with_a_large_page_and_gives_its_pages_back(dtype: torch.dtype) -> None:
    device = CPUDevice()
    with device.pool(Pool.KV_CACHE):
        cache, other = device.zeros((700, 1024), dtype), device.zeros((0, 7), dtype)
    kept = device.zeros((700, 1024), dtype)
    assert (cache.shape, cache.dtype, other.shape) == ((700, 1024), dtype, (0, 7))
    assert cache.data_ptr() % LARGE_PAGE == kept.data_ptr() % LARGE_PAGE == 0
    cache.fill_(7)
    kept.fill_(7)
    assert device.sleep((Pool.WEIGHTS,)) == 0
    assert device.sleep((Pool.KV_CACHE,)) >= cache.nbytes
    device.wake((Pool.KV_CACHE,))
    assert not cache.any()
    assert bool((kept == 7).all())


def test_the_layers_of_a_block_are_neighbours() -> None:
    """So that a few blocks are a few large pages, and not one a layer."""
    spec = AttentionSpec(
        num_heads=2, num_kv_heads=1, head_dim=64, scale=1.0, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
    )
    caches = NativeAttention(spec, Device()).allocate(100, 64, 30)
    block = 2 * 64 * 64
    assert [cache.data_ptr() - caches[0].data_ptr() for cache in caches] == [4 * block * i for i in range(30)]
    assert all(cache.shape == (100, 1, 2, 64 * 64) and cache.stride(0) == 30 * block for cache in caches)
