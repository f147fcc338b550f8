"""The block allocator against a model of it: any order of allocate, share, release, publish, delay and settle."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenon_core.engine.block_allocator import NULL_BLOCK, LRUBlockAllocator
from tenon_platforms.errors import CapacityError

pytestmark = [pytest.mark.unit, pytest.mark.null]
NUM_BLOCKS = 9


class AllocatorMachine(RuleBasedStateMachine):
    """held: references by block. hashes: what must be found, least recently freed first among the free ones."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = LRUBlockAllocator(num_blocks=NUM_BLOCKS)
        self.held: Counter[int] = Counter()
        self.hashes: dict[bytes, int] = {}
        self.delayed: set[int] = set()
        self.count = 0

    @property
    def free(self) -> set[int]:
        return {b for b in range(1, NUM_BLOCKS) if not self.held[b] and b not in self.delayed}

    def draw_held(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(b for b in self.held if self.held[b])))

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        free = self.free
        if count > len(free):
            with pytest.raises(CapacityError, match=f"{count} KV blocks are wanted and {len(free)} are free"):
                self.allocator.allocate(count)
            return
        plain = free - set(self.hashes.values())
        blocks = self.allocator.allocate(count)
        assert len(set(blocks)) == count and set(blocks) <= free and NULL_BLOCK not in blocks
        assert len(plain & set(blocks)) == min(count, len(plain)), "a cached block was taken while others were free"
        self.held.update(blocks)
        self.hashes = {key: block for key, block in self.hashes.items() if block not in blocks}

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = self.draw_held(data)
        self.allocator.release([NULL_BLOCK, block])
        self.held[block] -= 1

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def share_held(self, data: st.DataObject) -> None:
        block = self.draw_held(data)
        self.allocator.share([block, NULL_BLOCK])
        self.held[block] += 1

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), again=st.booleans())
    def publish(self, data: st.DataObject, again: bool) -> None:
        block = self.draw_held(data)
        key = next(iter(self.hashes), b"none") if again else b"%d" % self.count
        self.count += 1
        self.allocator.publish(block, key)
        if key not in self.hashes and block not in self.hashes.values():
            self.hashes[key] = block

    @precondition(lambda self: bool(self.hashes))
    @rule(data=st.data())
    def find_and_share(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.hashes)))
        block = self.allocator.find(key)
        assert block == self.hashes[key]
        self.allocator.share([block])
        self.held[block] += 1

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def delay(self, data: st.DataObject) -> None:
        block = self.draw_held(data)
        self.allocator.delay(block)
        self.delayed.add(block)

    @precondition(lambda self: bool(self.delayed))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.delayed)))
        self.allocator.settle(block)
        self.delayed.discard(block)

    @rule()
    def forget_all(self) -> None:
        self.allocator.forget_all()
        self.hashes.clear()

    @invariant()
    def adds_up(self) -> None:
        self.allocator.check_integrity([list(self.held.elements())])
        assert self.allocator.num_free == len(self.free)
        for key, block in self.hashes.items():
            assert self.allocator.find(key) == block
        assert self.allocator.find(b"never published") is None


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase


def test_cached_blocks_go_in_the_order_they_were_let_go_of() -> None:
    allocator = LRUBlockAllocator(num_blocks=5)
    blocks = allocator.allocate(4)
    for block in blocks:
        allocator.publish(block, b"%d" % block)
    for block in (blocks[2], blocks[0], blocks[3], blocks[1]):
        allocator.release([block])
    revived = allocator.find(b"%d" % blocks[0])
    assert revived is not None
    allocator.share([revived])
    assert allocator.allocate(2) == [blocks[2], blocks[3]]


def test_misuse_is_noticed() -> None:
    allocator = LRUBlockAllocator(num_blocks=4)
    (block,) = allocator.allocate(1)
    with pytest.raises(AssertionError, match=r"1 KV blocks do not add up: 1: held 0 times, counted 1"):
        allocator.check_integrity([])
    allocator.release([block])
    with pytest.raises(AssertionError, match="released more often than it was taken"):
        allocator.release([block])
    with pytest.raises(AssertionError, match="published by nobody"):
        allocator.publish(2, b"x")
    with pytest.raises(AssertionError, match="delayed while free"):
        allocator.delay(2)
    with pytest.raises(CapacityError, match="a pool of 1 KV blocks is too small"):
        LRUBlockAllocator(num_blocks=1)
