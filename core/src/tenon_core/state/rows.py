"""The row table: running sequences as a struct of arrays, so that a steady step touches arrays and not objects.

A row is one sequence; its number stays the same while it runs. The arrays are the host's truth; the device's mirror is
fed by step deltas. Counters that a step advances for all decoding rows are updated with one numpy call each.

    tokens   [ prompt ........ | output ........ ]
             0     num_computed        num_known   num_tokens
    num_computed  tokens whose K and V are written once the steps in flight are done
    num_known     tokens whose value the host knows
    num_tokens    tokens that exist once the steps in flight are done (known + in flight)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


class RowTable:
    """Arrays over `max_rows` rows. `num_groups` block tables of `max_blocks` entries; entry 0 is the null block."""

    def __init__(self, *, max_rows: int, max_len: int, num_groups: int, max_blocks: int) -> None:
        self.max_rows = max_rows
        self.max_len = max_len
        self.tokens = np.zeros((max_rows, max_len + 1), dtype=np.int32)
        self.keys = np.full(max_rows, -1, dtype=np.int64)  # sequence key, -1: free
        self.num_tokens = np.zeros(max_rows, dtype=np.int32)
        self.num_known = np.zeros(max_rows, dtype=np.int32)
        self.num_computed = np.zeros(max_rows, dtype=np.int32)
        self.num_prompt = np.zeros(max_rows, dtype=np.int32)
        self.limit = np.zeros(max_rows, dtype=np.int32)  # length at which the sequence ends
        self.in_flight = np.zeros(max_rows, dtype=np.int32)  # launched steps that hold the row
        self.stops_at_eos = np.zeros(max_rows, dtype=np.bool_)
        self.has_stop_ids = np.zeros(max_rows, dtype=np.bool_)
        self.wants_logprobs = np.zeros(max_rows, dtype=np.bool_)
        self.has_grammar = np.zeros(max_rows, dtype=np.bool_)
        self.is_beam = np.zeros(max_rows, dtype=np.bool_)  # what is sampled for it does not count
        self.block_tables = np.zeros((num_groups, max_rows, max_blocks), dtype=np.int32)
        self.num_blocks = np.zeros(max_rows, dtype=np.int32)  # entries of the tables in use, the same for all groups
        self.owners: list[Any] = [None] * max_rows
        self.epoch = 0  # raised whenever a row's owner changes or ends
        self._free = list(range(max_rows - 1, -1, -1))
        self._masked: Int32 | None = None
        self._mask = np.zeros(max_rows, dtype=np.int32)

    @property
    def num_free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    def mask(self, rows: Int32) -> Int32:
        """int32 [max_rows], 1 where `rows` names the row: adding it is far cheaper than `counter[rows] += 1`.

        The last mask is kept for as long as the same array object is asked for; nobody writes to it.
        """
        if rows is not self._masked:
            self._masked, self._mask = rows, np.zeros(self.max_rows, dtype=np.int32)
            self._mask[rows] = 1
        return self._mask

    def end(self, row: int) -> None:
        """The row's sequence has ended: no later token of it counts."""
        self.limit[row] = 0
        self.epoch += 1

    def take(self, owner: Any, key: int) -> int:
        """A free row for `owner`; all its counters are zero. The caller made sure that one is free."""
        row = self._free.pop()
        self.epoch += 1
        self.owners[row] = owner
        self.keys[row] = key
        for counter in (self.num_tokens, self.num_known, self.num_computed, self.num_prompt, self.num_blocks):
            counter[row] = 0
        return row

    def give_back(self, row: int) -> None:
        """Free a row. Its block-table entries must have been released."""
        assert self.in_flight[row] == 0, f"row {row} is still in flight"
        assert self.owners[row] is not None, f"row {row} is given back twice"
        self.owners[row] = None
        self.keys[row] = -1
        self._free.append(row)

    def check_integrity(self) -> None:
        """Free rows and owned rows make up the table."""
        free = set(self._free)
        assert len(free) == len(self._free), "a row is free twice"
        for row, owner in enumerate(self.owners):
            assert (owner is None) == (row in free), f"row {row} is lost"
            if owner is None:
                continue
            assert 0 <= self.num_computed[row] <= self.num_tokens[row] <= self.max_len + 1, f"row {row} counts wrong"
            assert self.num_known[row] <= self.num_tokens[row], f"row {row} knows more tokens than it has"
