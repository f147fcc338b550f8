"""The paged cache: what is written, copied, exported and imported."""

from __future__ import annotations

import pytest
import torch
from attention_cases import backend_of, spec_of
from e4m3_values import codes, edges, held_of

from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.torch_dtypes import movable
from tenon_triton.attention import kv_cache

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.FLOAT8_E4M3])
def test_canonical_form_is_what_was_written(dtype: DType) -> None:
    backend = backend_of(spec_of(4, 2, 24, kv_dtype=dtype))
    cache = backend.allocate(4, 16, 1)[0]
    merged = torch.randn(16, 8, 24)
    key, value = merged[:, 4:6], merged[:, 6:]  # views, as of merged QKV
    order = torch.randperm(16)
    backend.write_kv(key[order], value[order], cache, (32 + order).int())
    canonical = backend.export_blocks(cache, torch.tensor([2, 1], dtype=torch.int32))
    assert canonical.shape == (2, 2, 16, 2, 24)
    assert canonical.dtype == cache.dtype
    assert torch.equal(canonical[0, 0].float(), key.to(cache.dtype).float())
    assert torch.equal(canonical[0, 1].float(), value.to(cache.dtype).float())
    assert not canonical[1].float().any()
    assert backend.layout.block_bytes(16) * 4 == cache.nbytes
    other = backend.allocate(4, 16, 1)[0]
    backend.import_blocks(other, torch.tensor([3, 1], dtype=torch.int32), canonical)
    assert torch.equal(other[3].float(), cache[2].float())
    assert not other[:3].float().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_e4m3_cache_rounds_to_even_and_saturates(dtype: torch.dtype) -> None:
    """What is written, and what is imported from a canonical form of another type. NaN stays."""
    backend = backend_of(spec_of(2, 1, 8, kv_dtype=DType.FLOAT8_E4M3))
    some = edges().to(dtype)
    given = torch.cat((some, some.flip(0)))[: len(some) // 128 * 256].view(-1, 2, 1, 8)  # [tokens, kv, kv heads, dim]
    tokens = len(given)
    written, brought = (backend.allocate(2, tokens, 1)[0] for _ in range(2))
    backend.write_kv(given[:, 0], given[:, 1], written, torch.arange(tokens, 2 * tokens).int())
    backend.import_blocks(brought, torch.tensor([1]).int(), given.transpose(0, 1)[None])
    want = held_of(given).transpose(0, 1)
    assert {0x7E, 0xFE, 0x7F} <= set(want.flatten().tolist())
    for cache in (written, brought):
        assert torch.equal(codes(backend.export_blocks(cache, torch.tensor([1]).int()))[0], want)
        assert not cache[0].float().any()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT8_E4M3])
@pytest.mark.parametrize("together", [True, False])
def test_blocks_are_copied_in_every_layer(together: bool, dtype: DType) -> None:
    backend = backend_of(spec_of(4, 2, 16, kv_dtype=dtype))
    caches = backend.allocate(6, 16, 3)
    caches = caches if together else [cache.clone() for cache in caches]
    assert len(kv_cache._runs(caches)) == (1 if together else 3)
    for cache in caches:
        cache.copy_(torch.randn(cache.shape))
    before = [movable(cache).clone() for cache in caches]
    backend.copy_blocks(caches, torch.tensor([1, 2]).int(), torch.tensor([4, 5]).int())
    for cache, old in zip(map(movable, caches), before, strict=True):
        assert torch.equal(cache[4:6], old[1:3])
        assert torch.equal(cache[:4], old[:4])
    backend.copy_blocks(caches, torch.zeros(0).int(), torch.zeros(0).int())


def test_layout_names_what_lies_there() -> None:
    layout = kv_cache.kv_layout(2, 16, DType.FLOAT16, 16, 64)
    cache = kv_cache.allocate(Device(), layout, 5, 32, 2)
    assert layout.dims == ("block", "kv", "kv_head", "token", "head_dim")
    assert [part.shape for part in cache] == [(5, 2, 2, 32, 16)] * 2
    assert not any(part.any() for part in cache)
