"""Whether a step's tokens may have ended a sequence, in next to nothing where none can have.

How long every row still has, and whether any may stop at a token, is looked up when the rows change; between changes a
landed step only counts down. It says *may*: who did end is found by looking at each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tenon_core.state.rows import RowTable

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True, kw_only=True)
class EndWatch:
    """Asked once for each landed step, after `num_known` was raised by at most 1 a row."""

    table: RowTable
    eos_token_ids: tuple[int, ...]
    _epoch: int = -1  # of the row table when it was looked at
    _num_left: int = 0  # tokens until a row is as long as it may be
    _may_stop: bool = False  # at an end token
    _has_stop_ids: bool = False

    def may_end(self, tokens: Int32) -> bool:
        """Whether these new tokens may end the sequences they belong to."""
        self._num_left -= 1
        if self._num_left <= 0 or self._epoch != self.table.epoch:
            self._look()
        if self._num_left <= 0 or self._has_stop_ids:
            return True
        return self._may_stop and any(np.count_nonzero(tokens == one) for one in self.eos_token_ids)

    def _look(self) -> None:
        table = self.table
        alive = np.flatnonzero((table.keys >= 0) & (table.limit > 0) & ~table.is_beam)
        left = table.limit[alive] - table.num_known[alive]
        self._epoch = table.epoch
        self._num_left = int(left.min()) if len(left) else 0
        self._may_stop = bool(table.stops_at_eos[alive].any())
        self._has_stop_ids = bool(table.has_stop_ids[alive].any())
