"""The KV cache of the CPU platform: one tensor a layer, blocks with keys transposed.

    cache   [2, blocks, kv heads, head_dim * block_size]
    cache[0]  keys    [block, kv head, head_dim, token]     cache[1]  values  [block, kv head, token, head_dim]

So a key's dimension is a line of block_size tokens and a value is a line of head_dim: both products of decode attention
are weighted sums of lines, which `torch.embedding_bag` gathers and adds without copying the context.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kv_layout import KVLayout, LayoutKind

LAYOUT_ID = "cpu.transposed-keys.v1"
KERNEL_BLOCK = 16
PREFERRED_BLOCK = 64


class Places(NamedTuple):
    """Where a step's tokens go: block int64 [tokens], offset in it int64 [tokens]."""

    block: Tensor
    offset: Tensor


def kv_layout(num_kv_heads: int, head_dim: int) -> KVLayout:
    """The layout's description."""
    return KVLayout(
        kind=LayoutKind.PAGED,
        id=LAYOUT_ID,
        dims=("kv", "block", "kv_head", "head_dim x token | token x head_dim"),
        dtype=DType.FLOAT32,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        kernel_block_size=KERNEL_BLOCK,
        preferred_block_size=PREFERRED_BLOCK,
        padded_head_dim=head_dim,
    )


def shape_of(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Of one layer's cache."""
    return 2, num_blocks, num_kv_heads, head_dim * block_size


def keys_of(cache: Tensor, head_dim: int) -> Tensor:
    """[blocks, kv heads, head_dim, block_size]."""
    keys: Tensor = cache[0].unflatten(-1, (head_dim, -1))
    return keys


def values_of(cache: Tensor, head_dim: int) -> Tensor:
    """[blocks, kv heads, block_size, head_dim]."""
    values: Tensor = cache[1].unflatten(-1, (-1, head_dim))
    return values


def split_slots(slots: Tensor, block_size: int) -> Places:
    """Slots int32 [tokens] as places."""
    wide = slots.long()
    block = torch.div(wide, block_size, rounding_mode="floor")
    return Places(block, wide - block * block_size)


def write(key: Tensor, value: Tensor, cache: Tensor, places: Places) -> None:
    """Store key and value, [tokens, kv heads, head_dim]."""
    heads, dim = key.shape[1], key.shape[2]
    _, blocks, _, line = cache.shape
    keys = cache[0].view(blocks, heads, dim, line // dim)
    values = cache[1].view(blocks, heads, line // dim, dim)
    keys[places.block, :, :, places.offset] = key.to(cache.dtype)
    values[places.block, :, places.offset] = value.to(cache.dtype)


def copy_blocks(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    """Copy whole blocks in every layer."""
    source, target = source.long(), target.long()
    for cache in caches:
        cache.index_copy_(1, target, cache.index_select(1, source))


def export_blocks(cache: Tensor, blocks: Tensor, head_dim: int) -> Tensor:
    """Canonical form [n, 2, block_size, kv heads, head_dim]."""
    found = cache.index_select(1, blocks.long())
    keys = keys_of(found, head_dim).permute(0, 3, 1, 2)
    values = values_of(found, head_dim).transpose(1, 2)
    return torch.stack((keys, values), dim=1)


def import_blocks(cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
    """The inverse of `export_blocks`."""
    keys, values = canonical.to(cache.dtype).unbind(1)  # [n, block_size, kv heads, head_dim]
    lines = torch.stack((keys.permute(0, 2, 3, 1).flatten(2), values.transpose(1, 2).flatten(2)))
    cache.index_copy_(1, blocks.long(), lines)
