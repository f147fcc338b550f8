"""The block allocator: one pool of KV blocks, reference-counted, with a prefix cache in its free list.

It deals in numbers only. A block whose last user lets go stays findable by its hash until its place in the free list
(least recently used first) is reached. Every operation is O(1) a block. Block 0 is the null block: never given out.

A block's state: *held* (references > 0), *cached* (free, findable), *free* (free, forgotten), *delayed* (released, but
a transfer still reads or fills it).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from tenon_platforms.errors import CapacityError

NULL_BLOCK = 0
BlockHash = bytes  # SHA-256 chain value, with the group's number appended


class BlockAllocator(Protocol):
    """What the scheduler needs of an allocator; third parties bring theirs through `tenon.block_allocators`."""

    num_blocks: int

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could give now, cached ones included."""
        ...

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each; raises `CapacityError` where there are fewer, and takes none."""
        ...

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each block; the null block is ignored."""
        ...

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less to each block; the null block is ignored."""
        ...

    def find(self, block_hash: BlockHash) -> int | None:
        """A block with this content, or None. It may be free: `share` it before the next `allocate`."""
        ...

    def publish(self, block: int, block_hash: BlockHash) -> None:
        """A held block's content is complete and has this hash from now on."""
        ...

    def forget_all(self) -> None:
        """Drop every hash: nothing is found any more."""
        ...

    def delay(self, block: int) -> None:
        """Keep a block out of the free list, whoever releases it, until `settle`."""
        ...

    def settle(self, block: int) -> None:
        """The transfer is done."""
        ...

    def check_integrity(self, holders: Sequence[Sequence[int]]) -> None:
        """Assert that blocks add up; `holders`: the blocks of every owner."""
        ...


class LRUBlockAllocator:
    """The default. `num_blocks` counts the null block."""

    def __init__(self, *, num_blocks: int) -> None:
        if num_blocks < 2:
            raise CapacityError(f"a pool of {num_blocks} KV blocks is too small: at least 2 are needed")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._by_hash: dict[BlockHash, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._delayed: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        if count > len(self._free):
            raise CapacityError(f"{count} KV blocks are wanted and {len(self._free)} are free")
        pop, references, hashes = self._free.popitem, self._references, self._hash_of
        blocks = [pop(last=False)[0] for _ in range(count)]
        for block in blocks:
            references[block] = 1
            if hashes[block] is not None:
                self._forget(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self._references[block] == 0 and block not in self._delayed:
                del self._free[block]
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            count = self._references[block] - 1
            assert count >= 0, f"KV block {block} is released more often than it was taken"
            self._references[block] = count
            if count == 0 and block not in self._delayed:
                self._to_free_list(block)

    def find(self, block_hash: BlockHash) -> int | None:
        return self._by_hash.get(block_hash)

    def publish(self, block: int, block_hash: BlockHash) -> None:
        assert self._references[block] > 0, f"KV block {block} is published by nobody"
        if block_hash in self._by_hash or self._hash_of[block] is not None:
            return  # the same content twice: the first one stays findable
        self._by_hash[block_hash] = block
        self._hash_of[block] = block_hash

    def forget_all(self) -> None:
        for block in list(self._by_hash.values()):
            self._forget(block)

    def delay(self, block: int) -> None:
        assert self._references[block] > 0, f"KV block {block} is delayed while free"
        self._delayed.add(block)

    def settle(self, block: int) -> None:
        self._delayed.discard(block)
        if self._references[block] == 0 and block not in self._free:
            self._to_free_list(block)

    def check_integrity(self, holders: Sequence[Sequence[int]]) -> None:
        counted = [0] * self.num_blocks
        for blocks in holders:
            for block in blocks:
                counted[block] += block != NULL_BLOCK
        assert counted == self._references, _difference(counted, self._references)
        for block in range(1, self.num_blocks):
            idle = self._references[block] == 0 and block not in self._delayed
            assert idle == (block in self._free), f"KV block {block} is neither held nor free, or both"
        for block_hash, block in self._by_hash.items():
            assert self._hash_of[block] == block_hash, f"KV block {block} is found under a hash that is not its own"

    def _to_free_list(self, block: int) -> None:
        self._free[block] = None
        if self._hash_of[block] is None:
            self._free.move_to_end(block, last=False)  # nothing to remember: reuse it first

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hash_of[block] = None


def _difference(counted: list[int], references: list[int]) -> str:
    wrong = [block for block in range(len(counted)) if counted[block] != references[block]]
    lines = (f"{block}: held {counted[block]} times, counted {references[block]}" for block in wrong[:8])
    return f"{len(wrong)} KV blocks do not add up: {'; '.join(lines)}"
