"""What a steady step leaves out is what it would have found: ends, blocks, copies on a device in the host's memory."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from tenon_core.engine.block_allocator import LRUBlockAllocator
from tenon_core.engine.ends import EndWatch
from tenon_core.engine.kv_memory import KVMemory
from tenon_core.engine.prefix_cache import PrefixCache
from tenon_core.execution.delta import StepDelta
from tenon_core.execution.packing import StepPacker
from tenon_core.state.rows import RowTable
from tenon_platforms.batch import HostBatch
from tenon_platforms.device import Device
from tenon_platforms.shapes import GREEDY, ShapeKey

EOS = 7


def table_with(limits: list[int]) -> RowTable:
    """A table of running rows, of one known token each."""
    table = RowTable(max_rows=8, max_len=64, num_groups=1, max_blocks=16)
    for number, limit in enumerate(limits):
        row = table.take(object(), number)
        table.limit[row], table.num_known[row] = limit, 1
    return table


def landed(table: RowTable, watch: EndWatch, token: int = 0) -> bool:
    """One step of all rows that are not free."""
    rows = np.flatnonzero(table.keys >= 0)
    table.num_known[rows] += 1
    return watch.may_end(np.full(len(rows), token, dtype=np.int32))


def test_ends_are_looked_for_when_the_first_row_is_full() -> None:
    table = table_with([5, 9])
    watch = EndWatch(table=table, eos_token_ids=(EOS,))
    assert [landed(table, watch) for _ in range(4)] == [False, False, False, True]
    table.end(0)
    assert [landed(table, watch) for _ in range(4)] == [False, False, False, True]


def test_a_row_that_comes_later_is_watched_from_then_on() -> None:
    table = table_with([20])
    watch = EndWatch(table=table, eos_token_ids=())
    assert not landed(table, watch)
    row = table.take(object(), 9)
    table.limit[row], table.num_known[row] = 3, 1
    assert [landed(table, watch) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(("stops", "token", "expected"), [(True, EOS, True), (True, 1, False), (False, EOS, False)])
def test_an_end_token_counts_where_a_row_stops_at_it(stops: bool, token: int, expected: bool) -> None:
    table = table_with([20, 20])
    table.stops_at_eos[:] = stops
    assert landed(table, EndWatch(table=table, eos_token_ids=(1000, EOS)), token) is expected


def test_stop_ids_are_always_looked_for() -> None:
    table = table_with([20])
    table.has_stop_ids[:] = True
    assert landed(table, EndWatch(table=table, eos_token_ids=()))


def test_rows_get_their_blocks_in_time_though_not_every_step_looks() -> None:
    table, size = table_with([60, 60, 60]), 4
    allocator = LRUBlockAllocator(num_blocks=64)
    memory = KVMemory(
        table=table,
        allocator=allocator,
        prefix_cache=PrefixCache(allocator=allocator, block_size=size, windows=(0,), enabled=False),
        block_size=size,
        max_chunk=8,
    )
    rows = np.flatnonzero(table.keys >= 0).astype(np.int32)
    for row, length in zip(rows.tolist(), (3, 4, 6), strict=True):
        assert memory.grow(row, length)
        table.num_computed[row] = length
    assert not len(memory.grow_decodes(rows[:0]))
    for step in range(40):
        if step == 20:  # another object: rows may be others
            rows = rows.copy()
        assert not len(memory.grow_decodes(rows))
        table.num_computed[rows] += 1
        assert (table.num_blocks[rows] == -(-table.num_computed[rows] // size)).all()
    memory.check_integrity()


def test_a_device_in_the_hosts_memory_reads_what_was_packed_where_it_lies() -> None:
    device = Device(shares_host_memory=True)
    packer = StepPacker(device=device, max_tokens=4, max_rows=4, max_logits=4, axes=1, tables=(1, 5, 4), depth=2)
    rows = np.array([2, 0], dtype=np.int32)
    ones, key = np.ones(2, dtype=np.int32), ShapeKey(tokens=2, rows=2, logits=2, max_query=1, blocks=1, mode=GREEDY)
    seen = []
    for start in (5, 6):
        starts = np.array([start, start + 10], dtype=np.int32)
        delta = StepDelta(step=start, rows=rows, starts=starts, num_tokens=ones, num_decodes=2, max_blocks=1)
        host = HostBatch(
            num_tokens=2,
            num_rows=2,
            num_logits=2,
            num_decodes=2,
            query_lens=ones,
            seq_lens=starts + 1,
            max_query=1,
            max_seq=start + 11,
        )
        inputs = packer.pack(delta, key, host)
        assert inputs.rows.tolist() == [2, 0] and inputs.positions.tolist() == [[start, start + 10]]
        assert inputs.seq_lens.tolist() == [start + 1, start + 11]
        seen.append(inputs.positions.data_ptr())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("sizes", [(3, 3, 3), (13, 2, 2), (29, 5, 7), (1, 1, 1)])
def test_every_part_of_what_is_packed_begins_where_vectors_do(sizes: tuple[int, int, int]) -> None:
    tokens, rows, logits = sizes
    packer = StepPacker(device=Device(), max_tokens=32, max_rows=8, max_logits=8, axes=3, tables=(2, 9, 4), depth=2)
    lengths = np.full(rows, tokens // rows, dtype=np.int32)
    lengths[: tokens % rows] += 1
    most = int(lengths.max())
    decodes = rows if most == 1 else 0
    delta = StepDelta(
        step=0, rows=np.arange(rows, dtype=np.int32), starts=np.zeros(rows, dtype=np.int32), num_tokens=lengths,
        num_decodes=decodes, max_blocks=1, token_ids=np.arange(tokens - decodes, dtype=np.int32),
    )  # fmt: skip
    host = HostBatch(
        num_tokens=tokens, num_rows=rows, num_logits=rows, num_decodes=decodes, query_lens=lengths, seq_lens=lengths,
        max_query=most, max_seq=most,
    )  # fmt: skip
    key = ShapeKey(tokens=tokens, rows=rows, logits=logits, max_query=most, blocks=1, mode=GREEDY)
    inputs = packer.pack(delta, key, host)
    parts = [part for one in fields(inputs) if isinstance(part := getattr(inputs, one.name), torch.Tensor)]
    assert len(parts) == 12
    assert {part.storage_offset() * part.element_size() % 64 for part in parts} == {0}
    assert inputs.positions.shape == (3, tokens)
    assert inputs.query_starts.tolist()[: rows + 1] == [0, *np.cumsum(lengths).tolist()]
    assert inputs.num_valid.tolist() == [tokens, rows, rows]
