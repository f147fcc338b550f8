"""Attention over a cache of [blocks, kv heads, 2, block_size, head_dim], row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend, GraphSupport, attention_kernel
from tenon_platforms.batch import AttentionBatch, GQAInputs
from tenon_platforms.device import Device
from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.kv_layout import KVLayout, LayoutKind
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.torch_dtypes import to_torch

Row = tuple[int, int, int, Tensor]  # first token, last token + 1, length, blocks


def attention(spec: AttentionSpec, device: Device) -> Kernel | No:
    """The backend, offered."""
    return attention_kernel("frozen.attention", FrozenAttention(spec, device), flags=KernelFlags(graph_safe=False))


class FrozenAttention(AttentionBackend):
    """Causal, grouped-query, no feature."""

    graph_support = GraphSupport.NEVER
    needs_exact_host_lengths = True

    def __init__(self, spec: AttentionSpec, device: Device) -> None:
        self.spec = spec
        self.device = device
        self.layout = KVLayout(
            kind=LayoutKind.PAGED,
            id="frozen.paged",
            dims=("block", "kv_head", "kv", "token", "head_dim"),
            dtype=spec.kv_dtype,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            kernel_block_size=4,
            preferred_block_size=12,
            padded_head_dim=spec.head_dim,
        )

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        shape = (num_blocks, self.spec.num_kv_heads, 2, block_size, self.spec.head_dim)
        return [self.device.zeros(shape, to_torch(self.layout.dtype)) for _ in range(num_layers)]

    def plan(self, batch: AttentionBatch) -> list[Row]:
        table = batch.block_table.index_select(0, batch.rows)
        rows, start = [], 0
        for index, (query, length) in enumerate(zip(batch.host.query_lens, batch.host.seq_lens, strict=True)):
            rows.append((start, start + int(query), int(length), table[index, : -(-int(length) // batch.block_size)]))
            start += int(query)
        return rows

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        size, where = cache.shape[3], slots.long()
        cache.permute(0, 3, 1, 2, 4)[where // size, where % size] = torch.stack((key, value), dim=2).to(cache.dtype)

    def run(self, inputs: GQAInputs, plan: list[Row]) -> Tensor:
        output = torch.zeros_like(inputs.query)
        for start, end, length, blocks in plan:
            held = inputs.cache.index_select(0, blocks).permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, :length].float()
            query = inputs.query[start:end].float().view(end - start, held.shape[1], -1, held.shape[-1])
            scores = torch.einsum("nkgd,kld->kgnl", query, held[0]) * self.spec.scale
            place = torch.arange(length)
            hidden = place > place[length - (end - start) :, None]
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            output[start:end] = torch.einsum("kgnl,kld->nkgd", weights, held[1]).flatten(1, 2)
        return output

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        for cache in caches:
            cache[target.long()] = cache[source.long()]

    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        return cache[blocks.long()].permute(0, 2, 3, 1, 4).contiguous()

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        cache[blocks.long()] = canonical.permute(0, 3, 1, 2, 4).to(cache.dtype)
