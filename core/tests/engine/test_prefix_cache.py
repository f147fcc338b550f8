"""The prefix cache: chains tell prefixes and tenants apart; a hit is the longest prefix that every group can use."""

from __future__ import annotations

import numpy as np
import pytest
from driver import drive, request
from hypothesis import given, settings
from hypothesis import strategies as st
from null_engine import WINDOWED, null_engine

from tenon_core.engine.block_allocator import NULL_BLOCK, LRUBlockAllocator
from tenon_core.engine.prefix_cache import PrefixCache, chain, group_hash, root_hash

pytestmark = [pytest.mark.unit, pytest.mark.null]
SIZE = 4


def make(windows: tuple[int, ...], *, num_blocks: int = 200, enabled: bool = True) -> PrefixCache:
    allocator = LRUBlockAllocator(num_blocks=num_blocks)
    return PrefixCache(allocator=allocator, block_size=SIZE, windows=windows, enabled=enabled)


def tokens(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 9, count).astype(np.int32)


def test_chains_depend_on_everything_before_and_on_the_root() -> None:
    cache, first = make((0,)), tokens(40)
    hashes = cache.hashes(root_hash("", ""), first, [])
    assert len(hashes) == 10 and len(set(hashes)) == 10
    changed = first.copy()
    changed[17] += 1
    other = cache.hashes(root_hash("", ""), changed, [])
    assert [a == b for a, b in zip(hashes, other, strict=True)] == [True] * 4 + [False] * 6
    for salt, adapter in (("a", ""), ("", "a"), ("aa", ""), ("a", "a")):
        assert not set(cache.hashes(root_hash(salt, adapter), first, [])) & set(hashes)
    roots = {root_hash(*pair) for pair in (("1:a", ""), ("1", ":a"), ("", "1:a"), ("a", "b"), ("ab", ""), ("", "ab"))}
    assert len(roots) == 6


def test_known_hashes_are_extended_and_partial_blocks_have_none() -> None:
    cache, root, line = make((0,)), root_hash("", ""), tokens(19)
    known = cache.hashes(root, line[:9], [])
    assert len(known) == 2
    assert cache.hashes(root, line, known) == cache.hashes(root, line, []) and len(known) == 4
    assert known[0] == chain(root, line[:4]) and len({group_hash(known[0], group) for group in range(5)}) == 5


@settings(max_examples=200, deadline=None)
@given(
    windows=st.lists(st.sampled_from([0, 1, 3, 4, 5, 9, 40]), min_size=1, max_size=3),
    num_tokens=st.integers(1, 40),
    missing=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12),
)
def test_a_hit_is_the_longest_prefix_all_groups_can_go_on_from(
    windows: list[int], num_tokens: int, missing: list[tuple[int, int]]
) -> None:
    cache = make(tuple(windows))
    hashes = cache.hashes(root_hash("", ""), tokens(40), [])
    blocks: dict[tuple[int, int], int] = {}
    for index, chain_hash in enumerate(hashes):
        places = cache.allocator.allocate(len(windows))
        for group in range(len(windows)):
            if (group, index) in missing:
                places[group] = NULL_BLOCK
            blocks[group, index] = places[group]
        cache.publish(places, chain_hash)

    def usable(length: int) -> bool:
        """By the definition: every position that the next token sees has its block, in every group."""
        for group, window in enumerate(windows):
            end = length * SIZE
            seen = range(max(end - window + 1, 0) if window else 0, end)
            if any(blocks[group, position // SIZE] == NULL_BLOCK for position in seen):
                return False
        return True

    most = min(len(hashes), num_tokens // SIZE, (num_tokens - 1) // SIZE)
    best = max(length for length in range(most + 1) if usable(length))
    found = cache.lookup(hashes[: num_tokens // SIZE], num_tokens)
    assert [len(group) for group in found] == [best] * len(windows)
    for group, window in enumerate(windows):
        for index, block in enumerate(found[group]):
            seen = not window or (index + 1) * SIZE > best * SIZE - window + 1
            assert block == (blocks[group, index] if seen else NULL_BLOCK)


def test_a_disabled_cache_finds_and_publishes_nothing() -> None:
    cache = make((0, 5), enabled=False)
    hashes = cache.hashes(root_hash("", ""), tokens(8), [])
    cache.publish(cache.allocator.allocate(2), hashes[0])
    assert cache.lookup(hashes, 9) == [[], []]
    assert cache.allocator.find(group_hash(hashes[0], 0)) is None


@pytest.mark.parametrize("is_async", [True, False])
def test_a_block_that_a_window_passes_while_its_step_is_in_flight_is_found_later(is_async: bool) -> None:
    """Chunks of 13 with blocks of 16: the third chunk begins behind the window of a block that nobody knows of yet."""
    built = null_engine(WINDOWED, is_async=is_async, block_size=16, num_blocks=100, max_num_batched_tokens=13)
    for number in (1, 2):
        drive(built.engine, [request(number, list(range(27)), max_tokens=2)])
    assert built.engine.stats().num_prefix_hits == 16
