"""The rows' memory on the device, as the runner keeps it: parameters, block tables, counts and logit edits.

Counts and edits are wide (one vocabulary a slot), so only rows that use them have a slot; slots are reused. Where
shapes must not change, `fixed_slots` makes all of them at the start; where launches are captured, `grow_once` makes
all of them at their first use, and `num_moves` tells that captures which read the old table are void.
"""

from __future__ import annotations

import numpy as np
import torch

from tenon_platforms.batch import NUM_ROW_COLUMNS, RowColumn, RowState
from tenon_platforms.device import Device
from tenon_platforms.kernel import Kernel

from .delta import NO_BLOCKS, NO_INTS, Int32, RowStart, StepDelta
from .packing import flat_places

NEGATIVE_INFINITY = float("-inf")
BLOCK_PIECE, ROW_PIECE = 32, 8  # block-table entries and rows written by one launch on a device that compiles


class RowMemory:
    """Applies the row changes of deltas to a `RowState`."""

    def __init__(
        self,
        *,
        device: Device,
        writes: Kernel,
        max_rows: int,
        num_groups: int,
        max_blocks: int,
        vocab_size: int,
        fixed_slots: bool,
        pad_writes: bool,
        depth: int,
        grow_once: bool = False,
    ) -> None:
        self._device = device
        self._staging: list[torch.Tensor] = [device.host_buffer((0,), torch.int32) for _ in range(depth)]
        self._landing = device.empty((0,), torch.int32)
        self._turn = 0
        self._no_rows = device.empty((0,), torch.int32)
        self._no_params = device.empty((0, NUM_ROW_COLUMNS), torch.int32)
        self._writes = writes
        self._vocab_size = vocab_size
        self._pad_writes = pad_writes
        self._all_slots = max_rows + 1 if grow_once else 0
        self.num_moves = 0  # how often a table of the state has become another tensor
        slots = max_rows + 1 if fixed_slots else 1
        self.state = RowState(
            last_tokens=device.zeros((max_rows + 1,), torch.int32),
            params=device.zeros((max_rows + 1, NUM_ROW_COLUMNS), torch.int32),
            block_tables=device.zeros((num_groups, max_rows + 1, max_blocks), torch.int32),
            counts=device.zeros((slots, 2, vocab_size), torch.int32),
            edits=device.zeros((slots, 2, vocab_size), torch.float32),
        )
        self._count_slots: dict[int, int] = {}
        self._edit_slots: dict[int, int] = {}

    def apply(self, delta: StepDelta, *, step_carries_writes: bool) -> None:
        """Release, start and write what the delta says. Nothing is done for rows that did not change.

        step_carries_writes: the block writes are among the step's own inputs.
        """
        for row in delta.released:
            self._count_slots.pop(row, None)
            self._edit_slots.pop(row, None)
        blocks = NO_BLOCKS if step_carries_writes else delta.block_writes
        if delta.started or blocks.shape[0]:
            rows = np.array([start.row for start in delta.started], dtype=np.int32)
            params = np.zeros((len(rows), NUM_ROW_COLUMNS), dtype=np.int32)
            for line, start in zip(params, delta.started, strict=True):
                line[:] = np.frombuffer(start.params, dtype="<i4")
                line[RowColumn.COUNT_SLOT] = self._start_counts(start)
                line[RowColumn.EDIT_SLOT] = self._start_edits(start)
            self._write(blocks, rows, params)

    def write_blocks(self, places: torch.Tensor, blocks: torch.Tensor) -> None:
        """Apply the block writes that came with a step's inputs."""
        self._writes.run(self.state, places, blocks, self._no_rows, self._no_params)

    def warm(self) -> None:
        """Run the writes of a compiling device once, on the dummy row."""
        self._write_pieces(NO_BLOCKS, NO_INTS, np.zeros((0, NUM_ROW_COLUMNS), dtype=np.int32))

    def _write(self, blocks: Int32, rows: Int32, params: Int32) -> None:
        if self._pad_writes:
            self._write_pieces(blocks, rows, params)
            return
        count = blocks.shape[0]
        staged, landed = self._buffers(2 * count + rows.size + params.size)
        self._fill(staged.numpy(), blocks, rows, params)
        self._device.copy(landed, staged)
        self._launch(landed, count, rows.size)

    def _write_pieces(self, blocks: Int32, rows: Int32, params: Int32) -> None:
        """In pieces of one fixed size, padded with writes of what the dummy row holds: one shape, one compilation."""
        num_pieces = max(-(-len(blocks) // BLOCK_PIECE), -(-len(rows) // ROW_PIECE), 1)
        dummy = self.state.params.shape[0] - 1
        all_blocks = np.zeros((num_pieces * BLOCK_PIECE, 4), dtype=np.int32)
        all_blocks[:, 1] = dummy
        all_blocks[: len(blocks)] = blocks
        all_rows = np.full(num_pieces * ROW_PIECE, dummy, dtype=np.int32)
        all_rows[: len(rows)] = rows
        all_params = np.zeros((num_pieces * ROW_PIECE, NUM_ROW_COLUMNS), dtype=np.int32)
        all_params[: len(params)] = params
        size = 2 * BLOCK_PIECE + ROW_PIECE * (1 + NUM_ROW_COLUMNS)
        staged, _ = self._buffers(num_pieces * size)
        landed = self._landing[:size]  # queued work is done in order: every piece may land in the same place
        for piece in range(num_pieces):
            some = slice(piece * BLOCK_PIECE, (piece + 1) * BLOCK_PIECE)
            few = slice(piece * ROW_PIECE, (piece + 1) * ROW_PIECE)
            part = staged[piece * size : (piece + 1) * size]
            self._fill(part.numpy(), all_blocks[some], all_rows[few], all_params[few])
            self._device.copy(landed, part)
            self._launch(landed, BLOCK_PIECE, ROW_PIECE)

    def _fill(self, host: Int32, blocks: Int32, rows: Int32, params: Int32) -> None:
        """[ places | blocks | rows | params ]"""
        count = blocks.shape[0]
        second, third = 2 * count, 2 * count + rows.size
        groups, num_rows, num_blocks = self.state.block_tables.shape
        host[:count] = flat_places(blocks, (groups, num_rows, num_blocks))
        host[count:second] = blocks[:, 3]
        host[second:third] = rows
        host[third : third + params.size] = params.ravel()

    def _launch(self, landed: torch.Tensor, count: int, num_rows: int) -> None:
        second, third = 2 * count, 2 * count + num_rows
        self._writes.run(
            self.state,
            landed[:count],
            landed[count:second],
            landed[second:third],
            landed[third:].view(-1, NUM_ROW_COLUMNS),
        )

    def _buffers(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A host buffer that no copy in flight reads, and its place on the device; both grow by doubling."""
        self._turn = (self._turn + 1) % len(self._staging)
        if self._staging[self._turn].shape[0] < size:
            self._staging[self._turn] = self._device.host_buffer((2 * size,), torch.int32)
        if self._landing.shape[0] < size:
            self._landing = self._device.empty((2 * size,), torch.int32)
        return self._staging[self._turn][:size], self._landing[:size]

    def _start_counts(self, start: RowStart) -> int:
        if start.counted is None:
            return 0
        slot = self._take(self._count_slots, start.row, "counts")
        lines = np.zeros((2, self._vocab_size), dtype=np.int32)
        prompt, output = (np.frombuffer(data, dtype="<i4") for data in start.counted)
        lines[0][prompt] = 1
        np.add.at(lines[1], output, 1)
        self._put(self.state.counts[slot], torch.from_numpy(lines))
        return slot

    def _start_edits(self, start: RowStart) -> int:
        if not start.has_edits:
            return 0
        slot = self._take(self._edit_slots, start.row, "edits")
        lines = np.zeros((2, self._vocab_size), dtype=np.float32)
        if start.allowed is not None:
            lines[0] = NEGATIVE_INFINITY
            lines[0][list(start.allowed)] = 0.0
        for token, bias in start.bias.items():
            lines[0][token] += bias
        lines[1][list(start.banned)] = NEGATIVE_INFINITY
        self._put(self.state.edits[slot], torch.from_numpy(lines))
        return slot

    def _put(self, target: torch.Tensor, source: torch.Tensor) -> None:
        staged = self._device.host_buffer(tuple(source.shape), source.dtype)
        staged.copy_(source)
        self._device.copy(target, staged)

    def _take(self, owners: dict[int, int], row: int, table: str) -> int:
        taken = set(owners.values())
        slot = next(index for index in range(1, len(taken) + 2) if index not in taken)
        owners[row] = slot
        current = getattr(self.state, table)
        if slot >= len(current):
            grown = self._device.zeros((max(2 * slot, self._all_slots), *current.shape[1:]), current.dtype)
            self.num_moves += 1
            self._device.copy(grown[: len(current)], current)
            setattr(self.state, table, grown)
        return slot
