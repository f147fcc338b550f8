"""The paged KV cache of this family: one tensor a layer, every head's tokens of a block in one contiguous line.

    cache   [blocks, 2, kv heads, block_size, head_dim]

A tile of keys is one run of memory, and a block is one run too, so copying one is a plain copy. The layers of a group
are slices of one allocation: `copy_blocks` is a single launch for all of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kv_layout import KVLayout, LayoutKind
from tenon_platforms.torch_dtypes import movable, rounded_to, to_torch

from .configs import next_power

if TYPE_CHECKING:
    from tenon_platforms.device import Device

LAYOUT_ID = "triton.paged.v1"
COPY_WORDS = 2048  # int32 words a program copies


def kv_layout(num_kv_heads: int, head_dim: int, dtype: DType, kernel_block: int, preferred_block: int) -> KVLayout:
    """The layout's description."""
    return KVLayout(
        kind=LayoutKind.PAGED,
        id=LAYOUT_ID,
        dims=("block", "kv", "kv_head", "token", "head_dim"),
        dtype=dtype,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        kernel_block_size=kernel_block,
        preferred_block_size=preferred_block,
        padded_head_dim=head_dim,
    )


def allocate(device: Device, layout: KVLayout, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
    """Caches of a group's layers, zeroed, in one allocation."""
    shape = (num_layers, num_blocks, 2, layout.num_kv_heads, block_size, layout.head_dim)
    return list(device.zeros(shape, to_torch(layout.dtype)).unbind(0))


@triton.jit
def saturated(values, GREATEST: tl.constexpr):
    """Values as a cache holds them whose type ends at +-GREATEST, which is beyond no value where it is 0.

    float32 in that case. Other minima would make a number of NaN, and a conversion may make NaN of what lies beyond.
    """
    if GREATEST > 0.0:
        above: tl.constexpr = -GREATEST
        values = tl.maximum(values.to(tl.float32), above, propagate_nan=tl.PropagateNan.ALL)
        values = tl.minimum(values, GREATEST, propagate_nan=tl.PropagateNan.ALL)
    return values


@triton.jit(do_not_specialize=["slots"])
def write_kernel(
    cache,
    key,
    value,
    slots,
    block_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    GREATEST: tl.constexpr,
):
    """Grid (tokens,): one token's keys and values, all heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    at = tl.arange(0, WIDTH)
    head = at // DIM
    dim = at % DIM
    wanted = at < NUM_KV_HEADS * DIM
    target = cache + (slot // PAGE).to(tl.int64) * block_stride + head * (PAGE * DIM) + (slot % PAGE) * DIM + dim
    k = tl.load(key + token * key_stride + head * key_head_stride + dim, mask=wanted, other=0.0)
    v = tl.load(value + token * value_stride + head * value_head_stride + dim, mask=wanted, other=0.0)
    tl.store(target, saturated(k, GREATEST).to(cache.dtype.element_ty), mask=wanted)
    tl.store(target + NUM_KV_HEADS * PAGE * DIM, saturated(v, GREATEST).to(cache.dtype.element_ty), mask=wanted)


def write(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Store key and value, [tokens, kv heads, head_dim], any strides but the last, at int32 `slots` [tokens]."""
    tokens, heads, dim = key.shape
    if not tokens:
        return
    write_kernel[(tokens,)](
        cache,
        key,
        value,
        slots,
        cache.stride(0),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        NUM_KV_HEADS=heads,
        DIM=dim,
        PAGE=cache.shape[3],
        WIDTH=next_power(heads * dim),
        GREATEST=greatest(cache.dtype),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["source", "target", "layer_words", "block_words"])
def copy_kernel(words, source, target, layer_words, block_words, WIDTH: tl.constexpr):
    """Grid (pairs, layers, parts of a block): int32 words of block source[i] to block target[i]."""
    pair = tl.program_id(0)
    layer = words + tl.program_id(1).to(tl.int64) * layer_words
    at = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    wanted = at < block_words
    taken = tl.load(source + pair).to(tl.int64) * block_words
    given = tl.load(target + pair).to(tl.int64) * block_words
    tl.store(layer + given + at, tl.load(layer + taken + at, mask=wanted, other=0), mask=wanted)


def copy_blocks(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    """Copy whole blocks, int32 [n] to int32 [n], in every layer. No target is another pair's source."""
    if not source.numel() or not caches:
        return
    block_words = caches[0][0].nbytes // 4
    for first, count, stride in _runs(caches):
        grid = (source.numel(), count, triton.cdiv(block_words, COPY_WORDS))
        words = caches[first].view(torch.int32)
        copy_kernel[grid](words, source, target, stride // 4, block_words, WIDTH=COPY_WORDS, num_warps=4)


def _runs(caches: list[Tensor]) -> list[tuple[int, int, int]]:
    """(first, count, bytes between) of caches that lie at equal distances in one allocation."""
    steps = {after.data_ptr() - before.data_ptr() for before, after in pairwise(caches)}
    if len({cache.untyped_storage().data_ptr() for cache in caches}) == 1 and len(steps) <= 1:
        return [(0, len(caches), steps.pop() if steps else 0)]
    return [(index, 1, 0) for index in range(len(caches))]


def export_blocks(cache: Tensor, blocks: Tensor) -> Tensor:
    """Canonical form [n, 2, block_size, kv heads, head_dim], in the cache's element type."""
    return movable(cache).index_select(0, blocks.long()).transpose(2, 3).contiguous().view(cache.dtype)


def import_blocks(cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
    """The inverse of `export_blocks`."""
    lines = rounded_to(canonical, cache.dtype).transpose(2, 3).contiguous()
    movable(cache).index_copy_(0, blocks.long(), movable(lines))


def greatest(dtype: torch.dtype) -> float:
    """Where a cache's type ends that has no infinities, as `saturated` takes it; 0: it has them."""
    return torch.finfo(dtype).max if dtype == torch.float8_e4m3fn else 0.0
