"""Ops on the rows' device memory: where tokens and KV slots come from, and what a step's changes do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_platforms.batch import NUM_ROW_COLUMNS, HostBatch, RowState, StepInputs
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import ShapeKey

pytestmark = pytest.mark.unit
ROWS, BLOCKS = 6, 5  # of the table; row 6 is the dummy


def state_of(groups: int, seed: int) -> RowState:
    random = np.random.default_rng(seed)
    tables = random.integers(1, 90, (groups, ROWS + 1, BLOCKS)).astype(np.int32)
    tables[:, ROWS] = 0
    return RowState(
        last_tokens=torch.from_numpy(random.integers(0, 99, ROWS + 1).astype(np.int32)),
        params=torch.zeros(ROWS + 1, NUM_ROW_COLUMNS, dtype=torch.int32),
        block_tables=torch.from_numpy(tables),
        counts=torch.zeros(1, 2, 4, dtype=torch.int32),
        edits=torch.zeros(1, 2, 4),
    )


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    padding=st.integers(0, 5),
    block_size=st.sampled_from([1, 4, 6]),
    groups=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_prepare_inputs(sizes: list[int], padding: int, block_size: int, groups: int, seed: int) -> None:
    random, state = np.random.default_rng(seed), state_of(groups, seed)
    rows = random.permutation(ROWS)[: len(sizes)].astype(np.int32)
    longest = BLOCKS * block_size
    sizes = [min(size, longest) for size in sizes]
    starts = [int(random.integers(0, longest - size + 1)) for size in sizes]
    tokens = sum(sizes)
    token_rows = np.concatenate((np.repeat(np.arange(len(sizes)), sizes), np.full(padding, len(sizes))))
    positions = np.concatenate([np.arange(a, a + n) for a, n in zip(starts, sizes, strict=True)] + [np.zeros(padding)])
    ids = random.integers(-1, 50, tokens + padding)
    host = HostBatch(
        num_tokens=tokens,
        num_rows=len(sizes),
        num_logits=len(sizes),
        num_decodes=0,
        query_lens=np.array(sizes, dtype=np.int32),
        seq_lens=np.array(sizes, dtype=np.int32),
        max_query=max(sizes),
        max_seq=longest,
    )

    def tensor(values: object) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values).astype(np.int32))

    empty = tensor([])
    inputs = StepInputs(
        key=ShapeKey(tokens=tokens + padding, rows=len(sizes) + 1, logits=1, max_query=max(sizes), blocks=BLOCKS),
        host=host,
        token_ids=tensor(ids),
        positions=tensor(positions)[None],
        token_rows=tensor(token_rows),
        rows=tensor([*rows, ROWS]),
        query_starts=empty,
        seq_lens=empty,
        logit_index=empty,
        logit_rows=empty,
        targets=empty,
        write_places=empty,
        write_blocks=empty,
        num_valid=tensor([tokens, len(sizes), len(sizes)]),
    )
    found_ids, slots = (
        OpTable(platform="reference").choose(PrepareInputsSpec(block_sizes=(block_size,) * groups)).run(inputs, state)
    )
    assert found_ids.dtype == torch.int32 and len(slots) == groups
    for token in range(tokens):
        row = int(rows[token_rows[token]])
        assert found_ids[token] == (ids[token] if ids[token] >= 0 else state.last_tokens[row])
        place = int(positions[token])
        for group in range(groups):
            block = int(state.block_tables[group, row, place // block_size])
            assert slots[group][token] == block * block_size + place % block_size
    for group in range(groups):
        assert slots[group].dtype == torch.int32
        assert (slots[group][tokens:] < block_size).all(), "padding is written outside the null block"


def test_row_writes_touch_what_they_name_and_nothing_else() -> None:
    state = state_of(2, 1)
    before, places = state.block_tables.clone(), torch.tensor([3, 3, 40, 69], dtype=torch.int32)
    blocks = torch.tensor([7, 7, 8, 0], dtype=torch.int32)
    rows = torch.tensor([2, 5, 5], dtype=torch.int32)
    params = torch.arange(3 * NUM_ROW_COLUMNS, dtype=torch.int32).view(3, -1)
    params[2] = params[1]
    run = OpTable(platform="reference").choose(RowWritesSpec(num_groups=2)).run
    run(state, places, blocks, rows, params)
    expected = before.view(-1).clone()
    expected[[3, 40, 69]] = torch.tensor([7, 8, 0], dtype=torch.int32)
    assert torch.equal(state.block_tables.view(-1), expected)
    assert torch.equal(state.params[[2, 5]], params[:2])
    assert not state.params[[0, 1, 3, 4, 6]].any()
    none = torch.zeros(0, dtype=torch.int32)
    run(state, none, none, none, torch.zeros(0, NUM_ROW_COLUMNS, dtype=torch.int32))
    assert torch.equal(state.block_tables.view(-1), expected)
