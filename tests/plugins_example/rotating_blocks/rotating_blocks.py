"""A block allocator that remembers nothing: it gives out the block that has been free longest, so wear is even.

It imports nothing of Tenon: the protocol is a handful of methods (`tenon_core.engine.block_allocator.BlockAllocator`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence


class RotatingBlocks:
    """`tenon serve MODEL --block-allocator rotating`. num_given: blocks given out by all instances."""

    num_given = 0

    def __init__(self, *, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(1, num_blocks))
        self._references: Counter[int] = Counter()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        assert count <= len(self._free)
        blocks = [self._free.popleft() for _ in range(count)]
        self._references.update(blocks)
        RotatingBlocks.num_given += count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        self._references.update(block for block in blocks if block)

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block:
                self._references[block] -= 1
                if not self._references[block]:
                    del self._references[block]
                    self._free.append(block)

    def find(self, block_hash: bytes) -> int | None:
        return None

    def publish(self, block: int, block_hash: bytes) -> None:
        """Nothing is remembered."""

    def forget_all(self) -> None:
        """Nothing is remembered."""

    def delay(self, block: int) -> None:
        self._references[block] += 1  # the transfer is one more user

    def settle(self, block: int) -> None:
        self.release([block])

    def check_integrity(self, holders: Sequence[Sequence[int]]) -> None:
        held = Counter(block for blocks in holders for block in blocks if block)
        assert held == self._references, f"held {held}, counted {self._references}"
        assert sorted([*self._free, *held]) == list(range(1, self.num_blocks))
