"""Blocks of rows: growing a row's tables, letting go of what a sliding window has passed, sharing and forking.

Between the row table (which block is where) and the allocator (which block is free). Every change of a table is also
noted as a block write for the next step delta.

    window of a group     [ 0 0 0 | b7 b8 b9 | . . . ]     0: passed by the window, the null block
                                   first      num_blocks
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tenon_core.state.rows import RowTable

from .block_allocator import BlockAllocator
from .prefix_cache import PrefixCache
from .sequence import Sequence

Int32 = npt.NDArray[np.int32]
NO_ROWS: Int32 = np.zeros(0, dtype=np.int32)


class KVMemory:
    """The blocks of all rows.

    max_chunk: most tokens of one row in a step. look_ahead: tokens of room a decoding row has beyond its next one.
    """

    def __init__(
        self,
        *,
        table: RowTable,
        allocator: BlockAllocator,
        prefix_cache: PrefixCache,
        block_size: int,
        max_chunk: int,
        look_ahead: int = 0,
    ) -> None:
        assert look_ahead < block_size, "a step may need one new block a row, not more"
        self.table = table
        self.allocator = allocator
        self.prefix_cache = prefix_cache
        self.block_size = block_size
        self.max_chunk = max_chunk
        self.look_ahead = look_ahead
        self.windows = prefix_cache.windows
        self.num_groups = len(self.windows)
        self._first = np.zeros((self.num_groups, table.max_rows), dtype=np.int32)
        self._capacity = np.zeros(table.max_rows, dtype=np.int32)  # tokens that a row's blocks have room for
        self._roomy: Int32 | None = None  # rows that need no block for `_num_roomy` tokens each
        self._num_roomy = 0
        self._writes: list[Int32] = []
        self._copies: list[tuple[int, int]] = []
        self._due: list[tuple[int, int]] = []  # copies of forks on the step built last

    # questions

    def blocks_for(self, num_tokens: int) -> int:
        """Most blocks that a sequence of `num_tokens` holds at once, over all groups.

        A windowed group holds its window and the chunk being computed; for as long as a chunk before it has not
        landed, that one too, and waits for it where there is no room for both.
        """
        size = self.block_size
        whole = -(-num_tokens // size)
        return sum(
            min(whole, -(-(window + self.max_chunk) // size) + 1) if window else whole for window in self.windows
        )

    def growth_of(self, rows: Int32, tokens_ahead: int) -> int:
        """Blocks that running `rows` will take within `tokens_ahead` more tokens each, at most."""
        table, size = self.table, self.block_size
        ends = np.minimum(table.num_tokens[rows] + tokens_ahead, table.limit[rows])
        return int(np.maximum(-(-ends // size) - table.num_blocks[rows], 0).sum()) * self.num_groups

    # growing

    def start(self, row: int, cached: list[list[int]]) -> None:
        """Give a fresh row the shared blocks of its cached prefix, one list a group, equally long."""
        for group, blocks in enumerate(cached):
            self.allocator.share(blocks)
            self._first[group, row] = next((i for i, block in enumerate(blocks) if block), len(blocks))
            self._write(group, row, 0, blocks)
        self._set_blocks(row, len(cached[0]) if cached else 0)

    def grow(self, row: int, num_tokens: int, *, spare: int = 0) -> bool:
        """Blocks for the row's first `num_tokens` tokens; False, and nothing taken, where `spare` would not be left."""
        have = int(self.table.num_blocks[row])
        more = -(-num_tokens // self.block_size) - have
        if max(more, 0) * self.num_groups + spare > self.allocator.num_free:
            return False
        if more <= 0:
            return True
        for group in range(self.num_groups):
            self._write(group, row, have, self.allocator.allocate(more))
        self._set_blocks(row, have + more)
        return True

    def grow_decodes(self, rows: Int32) -> Int32:
        """One more token for each row; returns those that got no block because none is free.

        Asked before each token; for as long as it is the same array object, all of its rows get the token.
        """
        if not len(rows):
            return NO_ROWS
        if rows is self._roomy and self._num_roomy > 0:
            self._num_roomy -= 1
            return NO_ROWS
        table = self.table
        room = self._capacity.take(rows) - table.num_computed.take(rows)
        needy = rows[room <= 0]
        if not len(needy):
            self._roomy, self._num_roomy = rows, int(room.min()) - 1
            return needy
        self._roomy = None
        if any(self.windows):
            for row in needy.tolist():
                self.pass_window(row)
        served = min(len(needy), self.allocator.num_free // self.num_groups)
        lucky, unlucky = needy[:served], needy[served:]
        places = table.num_blocks[lucky]
        for group in range(self.num_groups):
            blocks = np.array(self.allocator.allocate(served), dtype=np.int32)
            table.block_tables[group, lucky, places] = blocks
            writes = np.empty((served, 4), dtype=np.int32)
            writes[:, 0], writes[:, 1], writes[:, 2], writes[:, 3] = group, lucky, places, blocks
            self._writes.append(writes)
        table.num_blocks[lucky] = places + 1
        self._capacity[lucky] += self.block_size
        return unlucky

    def pass_window(self, row: int, num_published: int | None = None) -> None:
        """Release the blocks that no token from `num_computed` on can see.

        num_published: none after so many, which the prefix cache does not know of yet: their step has not landed.
        """
        position = int(self.table.num_computed[row])
        for group, window in enumerate(self.windows):
            if not window:
                continue
            first = max(position - window + 1, 0) // self.block_size
            known = int(self._first[group, row])
            first = min(first, int(self.table.num_blocks[row]))
            if num_published is not None:
                first = min(first, num_published)
            if first > known:
                passed = self.table.block_tables[group, row, known:first]
                self.allocator.release(passed.tolist())
                passed[:] = 0
                self._first[group, row] = first

    # sharing

    def fork(self, parent: int, child: int, *, before_next: bool = False) -> None:
        """Give `child` the parent's blocks; the last one, if tokens still go into it, as a copy of its own.

        The caller made sure that `num_groups` blocks are free. The copy is done after the step that is being scheduled,
        which fills the parent's block, and before the one after it, which is the first to write either block.
        before_next: no step that fills it is being scheduled; the copy is done before the next one.
        """
        copies = self._due if before_next else self._copies
        table, size = self.table, self.block_size
        count = int(table.num_blocks[parent])
        partial = int(table.num_computed[parent]) % size != 0
        for group in range(self.num_groups):
            blocks = table.block_tables[group, parent, :count].tolist()
            if partial:
                own = self.allocator.allocate(1)[0]
                copies.append((blocks[-1], own))
                self.allocator.share(blocks[:-1])
                blocks[-1] = own
            else:
                self.allocator.share(blocks)
            self._write(group, child, 0, blocks)
            self._first[group, child] = self._first[group, parent]
        self._set_blocks(child, count)

    def publish(self, sequence: Sequence, num_done: int) -> None:
        """Tell the prefix cache of the row's blocks that `num_done` computed tokens have filled."""
        table, size, row = self.table, self.block_size, sequence.row
        full = num_done // size
        self.prefix_cache.hashes(sequence.root, table.tokens[row, : full * size], sequence.hashes)
        for index in range(sequence.num_published, full):
            self.prefix_cache.publish(table.block_tables[:, row, index].tolist(), sequence.hashes[index])
        sequence.num_published = full

    def release(self, row: int) -> None:
        """Let go of all the row's blocks, the last first, so that a prefix outlives its continuations."""
        count = int(self.table.num_blocks[row])
        for group in range(self.num_groups):
            blocks = self.table.block_tables[group, row, :count]
            self.allocator.release(reversed(blocks.tolist()))
            blocks[:] = 0
            self._first[group, row] = 0
        self._set_blocks(row, 0)

    # what a step delta must carry

    def take_writes(self) -> Int32 | None:
        """Table entries changed since the last call: int32 [n, 4] of (group, row, index, block)."""
        writes, self._writes = self._writes, []
        if not writes:
            return None
        return writes[0] if len(writes) == 1 else np.concatenate(writes)

    def take_copies(self) -> Int32 | None:
        """Block copies to do before the step now built: those of forks on the step before it, int32 [n, 2]."""
        due, self._due, self._copies = self._due, self._copies, []
        return np.array(due, dtype=np.int32) if due else None

    def check_integrity(self) -> None:
        """Blocks held by rows are exactly the allocator's held blocks."""
        table = self.table
        self.allocator.check_integrity(
            [
                table.block_tables[group, row, : table.num_blocks[row]].tolist()
                for group in range(self.num_groups)
                for row in range(table.max_rows)
            ]
        )

    def _set_blocks(self, row: int, count: int) -> None:
        self._roomy = None
        self.table.num_blocks[row] = count
        self._capacity[row] = count * self.block_size - self.look_ahead

    def _write(self, group: int, row: int, start: int, blocks: list[int]) -> None:
        if blocks:
            self.table.block_tables[group, row, start : start + len(blocks)] = blocks
            writes = np.empty((len(blocks), 4), dtype=np.int32)
            writes[:, 0], writes[:, 1], writes[:, 3] = group, row, blocks
            writes[:, 2] = np.arange(start, start + len(blocks))
            self._writes.append(writes)
