"""The prefix cache: which blocks of a new prompt are already computed.

A full block's hash chains its tokens to everything before it, starting from the tenant's salt and the adapter, so equal
hashes mean equal prefixes (SHA-256: no tenant can forge another's). The hash unit is `block_size` tokens; a group's
entries are told apart by its number. A hit is the longest prefix valid in all groups: a full-attention group needs
every block of it, a sliding-window group only those its window still sees.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .block_allocator import NULL_BLOCK, BlockAllocator, BlockHash

Int32 = npt.NDArray[np.int32]


def root_hash(cache_salt: str, adapter: str) -> bytes:
    """The value every chain of a tenant and adapter starts from."""
    salt, name = cache_salt.encode(), adapter.encode()
    return hashlib.sha256(b"%d:%s%d:%s" % (len(salt), salt, len(name), name)).digest()


def chain(parent: bytes, tokens: Int32) -> bytes:
    """The hash of a full block of `tokens` after a prefix of hash `parent`."""
    return hashlib.sha256(parent + tokens.astype("<i4", copy=False).tobytes()).digest()


def group_hash(chain_hash: bytes, group: int) -> BlockHash:
    """The key of one group's block."""
    return chain_hash + bytes((group,))


@dataclass(slots=True, kw_only=True)
class PrefixCache:
    """Lookup and publication over an allocator. windows: 0 or the sliding window, one a group."""

    allocator: BlockAllocator
    block_size: int
    windows: tuple[int, ...]
    enabled: bool
    num_queries: int = 0  # prompt tokens admitted
    num_hits: int = 0  # of them, found cached

    def hashes(self, root: bytes, tokens: Int32, known: list[bytes]) -> list[bytes]:
        """Chain hashes of all full blocks of `tokens`; `known` are those already computed, and are extended."""
        size = self.block_size
        for index in range(len(known), len(tokens) // size):
            parent = known[-1] if known else root
            known.append(chain(parent, tokens[index * size : (index + 1) * size]))
        return known

    def lookup(self, hashes: list[bytes], num_tokens: int) -> list[list[int]]:
        """Blocks of the longest cached prefix, one list a group, equally long; blocks no window needs are null.

        At least one of the prompt's `num_tokens` stays to be computed. The caller shares the blocks.
        """
        if not self.enabled:
            return [[] for _ in self.windows]
        usable = min(len(hashes), (num_tokens - 1) // self.block_size)
        found = [self._found(hashes, group, usable) for group in range(len(self.windows))]
        length = usable
        while length:
            shorter = min(self._valid(found[group], length, window) for group, window in enumerate(self.windows))
            if shorter == length:
                break
            length = shorter
        return [self._needed(found[group], length, window) for group, window in enumerate(self.windows)]

    def count(self, num_tokens: int, num_cached: int) -> None:
        """A prompt of `num_tokens` was admitted with so many of them cached."""
        self.num_queries += num_tokens
        self.num_hits += num_cached

    def publish(self, tables: list[int], chain_hash: bytes) -> None:
        """A full block is complete in every group; `tables`: its block in each group, null where it is gone."""
        if self.enabled:
            for group, block in enumerate(tables):
                if block != NULL_BLOCK:
                    self.allocator.publish(block, group_hash(chain_hash, group))

    def _found(self, hashes: list[bytes], group: int, usable: int) -> list[int]:
        """The group's block of each hash, null where it is not cached. A full group stops at its first gap."""
        blocks: list[int] = []
        for chain_hash in hashes[:usable]:
            block = self.allocator.find(group_hash(chain_hash, group))
            if block is None and not self.windows[group]:
                break
            blocks.append(NULL_BLOCK if block is None else block)
        return blocks

    def _valid(self, blocks: list[int], length: int, window: int) -> int:
        """The longest prefix of at most `length` blocks that this group can go on from."""
        length = min(length, len(blocks))
        if not window:
            return length
        while length:
            start = self._first_needed(length, window)
            gap = next((index for index in range(length - 1, start - 1, -1) if blocks[index] == NULL_BLOCK), None)
            if gap is None:
                return length
            length = gap
        return 0

    def _needed(self, blocks: list[int], length: int, window: int) -> list[int]:
        start = self._first_needed(length, window) if window else 0
        return [NULL_BLOCK] * start + blocks[start:length]

    def _first_needed(self, length: int, window: int) -> int:
        """Index of the first block that the token after `length` full blocks still sees."""
        return max(length * self.block_size - window + 1, 0) // self.block_size
