"""KV pools: which layer groups share caches. One pool holds the groups of one layout; block numbers are common to all.

pool 0   layout A   groups 0, 2    caches: as many as the largest of them has layers; the i-th layer uses cache i
pool 1   layout B   group 1        where one group's kernel is a platform's and another's the reference's, say
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenon_platforms.attention import AttentionBackend
from tenon_platforms.kv_layout import KVLayout

from .model import LayerGroup


@dataclass(slots=True, kw_only=True)
class KVPool:
    """Groups of one layout. backend: one of theirs; they allocate and copy alike."""

    backend: AttentionBackend
    groups: list[LayerGroup] = field(default_factory=list)

    @property
    def num_layers(self) -> int:
        """Caches it needs: a block belongs to one group at a time, so groups share them."""
        return max(len(group.layers) for group in self.groups)

    def caches(self, of_layers: Sequence[Any]) -> list[Any]:
        """Its caches, each once, among the caches of all layers."""
        return list(
            {id(of_layers[layer]): of_layers[layer] for group in self.groups for layer in group.layers}.values()
        )

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block in all caches."""
        return self.backend.layout.block_bytes(block_size) * self.num_layers


def plan_pools(groups: Iterable[LayerGroup]) -> list[KVPool]:
    """The pools of these groups, in their order."""
    found: dict[KVLayout, KVPool] = {}
    for group in groups:
        layout = group.backend.layout
        if layout in found:
            found[layout].groups.append(group)
        else:
            found[layout] = KVPool(backend=group.backend, groups=[group])
    return list(found.values())
