"""The kernels, interpreted, against float64: ragged batches, shuffled and shared blocks, poison where none may look.

An interpreted program costs milliseconds, so shapes are small; tiles are small too, to meet every edge. The quick
profile takes every option and every edge once, the full one their products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import SMALL, attend, backend_of, check, fill, make_batch, make_case, reference_of, spec_of, truth
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_platforms.batch import GQAInputs
from tenon_platforms.dtypes import DType

pytestmark = pytest.mark.unit

FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 19},
    "window of one": {"sliding_window": 1},
    "soft cap": {"soft_cap": 2.0},
    "all": {"sliding_window": 33, "soft_cap": 5.0, "sinks": True},
}
DECODES = [(1, 1), (1, 16), (1, 17), (1, 70), (1, 131)]
MIXED = [(1, 40), (1, 3), (5, 5), (20, 51), (2, 70), (17, 17)]
ROWS = {"decode": DECODES, "mixed": MIXED}
FULL = pytest.mark.full
MODELS = [(3, 64), (2, 96), (2, 128), (2, 256)]


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        ("decode", "plain"),
        ("mixed", "window of one"),
        ("decode", "all"),
        ("mixed", "all"),
        *(pytest.param(rows, fields, marks=FULL) for rows in ROWS for fields in ("window", "soft cap")),
        pytest.param("decode", "window of one", marks=FULL),
        pytest.param("mixed", "plain", marks=FULL),
    ],
)
def test_against_float64(rows: str, fields: str) -> None:
    check(spec_of(**FIELDS[fields]), ROWS[rows], 16)


@pytest.mark.parametrize(("join", "tail"), [(True, False), (False, True)])
def test_parts_are_joined_by_the_last_or_by_a_kernel(join: bool, tail: bool) -> None:
    configs = replace(SMALL, decode=replace(SMALL.decode, join=join, tail=tail))
    check(spec_of(sinks=True), [(1, 200), (1, 15)], 16, options={"configs": configs})


@pytest.mark.parametrize(
    ("fields", "heads", "block_size", "programs"),
    [
        ({}, (4, 2, 16), 16, 4),
        ({"sliding_window": 33, "soft_cap": 5.0, "sinks": True}, (4, 2, 16), 64, 1),
        ({"sliding_window": 1}, (3, 1, 24), 16, 4),
        pytest.param({"sinks": True}, (5, 1, 80), 48, 1, marks=FULL),
    ],
)
@pytest.mark.parametrize(("strands", "tile"), [(2, 32), (4, 64), pytest.param(8, 128, marks=FULL)])
def test_strands_have_a_softmax_each(
    fields: dict[str, Any], heads: tuple[int, int, int], block_size: int, programs: int, strands: int, tile: int
) -> None:
    """Tiles in slices, ragged ends, strands that see nothing, several parts and one."""
    few = replace(SMALL.decode, tile=tile, strands=strands, min_tokens=tile, fetches=3, programs_per_unit=programs)
    configs = replace(SMALL, decode=few)
    check(spec_of(*heads, **fields), [(1, 1), (1, 16), (1, 17), (1, 200)], block_size, options={"configs": configs})


def test_strands_in_half_types() -> None:
    few = replace(SMALL.decode, tile=64, strands=4, min_tokens=64)
    spec = spec_of(dtype=DType.FLOAT16, kv_dtype=DType.FLOAT8_E4M3)
    check(spec, [(1, 66), (1, 7), (1, 131)], 16, atol=3e-3, options={"configs": replace(SMALL, decode=few)})


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(2, 2, 80), (20, 1, 16), *(pytest.param(heads, 1, dim, marks=FULL) for heads, dim in MODELS)],
)
def test_heads_of_models(heads: int, kv_heads: int, dim: int) -> None:
    check(spec_of(heads, kv_heads, dim), [(1, 37), (9, 20)], 16)


@pytest.mark.parametrize("block_size", [48, 64])
def test_block_sizes(block_size: int) -> None:
    check(spec_of(), [(1, 100), (33, 70)], block_size)


def test_shared_blocks() -> None:
    check(spec_of(2, 1), [(1, 70), (1, 69), (10, 60)], 16, share=3)


@pytest.mark.parametrize("fields", [{}, {"sliding_window": 9}])
def test_bidirectional(fields: dict[str, int]) -> None:
    check(spec_of(causal=False, **fields), [(5, 5), (40, 40), (17, 17)], 16)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "atol"),
    [
        (DType.FLOAT16, DType.FLOAT16, 3e-3),
        (DType.FLOAT32, DType.FLOAT16, 2e-5),
        (DType.FLOAT16, DType.FLOAT8_E4M3, 3e-3),
    ],
)
def test_element_types(dtype: DType, kv_dtype: DType, atol: float) -> None:
    check(spec_of(dtype=dtype, kv_dtype=kv_dtype), [(1, 66), (1, 7), (18, 40)], 16, atol=atol)


@pytest.mark.parametrize(("dtype", "atol"), [(DType.FLOAT32, 1e-2), (DType.FLOAT16, 1.0)])
def test_values_beyond_an_e4m3_cache_weigh_as_its_last(dtype: DType, atol: float) -> None:
    spec = spec_of(dtype=dtype, kv_dtype=DType.FLOAT8_E4M3)
    check(spec, [(1, 40), (1, 3), (18, 40)], 16, atol=atol, sizes=(0.1, 500.0))


@settings(max_examples=8, deadline=None)
@given(
    decodes=st.lists(st.integers(1, 90), max_size=3),
    prefills=st.lists(st.tuples(st.integers(2, 40), st.integers(0, 60)), max_size=2),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (5, 1)]),
    dim=st.sampled_from([8, 16, 24, 64]),
    window=st.sampled_from([0, 0, 1, 7, 33]),
    soft_cap=st.sampled_from([0.0, 3.0]),
    sinks=st.booleans(),
    block_size=st.sampled_from([16, 48, 64]),
    half=st.booleans(),
)
def test_any_batch_over_an_e4m3_cache(
    decodes: list[int],
    prefills: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    window: int,
    soft_cap: float,
    sinks: bool,
    block_size: int,
    half: bool,
) -> None:
    """Against float64 of the keys and values as the cache holds them; whatever else lies in it is 0x7F."""
    rows = [(1, length) for length in decodes] + [(count, before + count) for count, before in prefills]
    if rows:
        fields = {"dtype": DType.FLOAT16 if half else DType.FLOAT32, "kv_dtype": DType.FLOAT8_E4M3}
        spec = spec_of(*heads, dim, sliding_window=window, soft_cap=soft_cap, sinks=sinks, **fields)
        check(spec, rows, block_size, share=1, atol=3e-3 if half else 2e-5)


def test_padding_rows_of_a_decode() -> None:
    check(spec_of(), [(1, 50), (1, 9)], 16, pad_rows=2, static=True)


def test_padding_of_a_captured_mixed_step() -> None:
    check(spec_of(), [(1, 50), (1, 9), (7, 20)], 16, pad_rows=3, pad_tokens=5, static=True)


@settings(max_examples=4, deadline=None)
@given(
    decodes=st.lists(st.integers(1, 90), max_size=3),
    prefills=st.lists(st.tuples(st.integers(2, 40), st.integers(0, 60)), max_size=2),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (5, 1)]),
    dim=st.sampled_from([8, 16, 24]),
    window=st.sampled_from([0, 0, 1, 7, 33]),
    soft_cap=st.sampled_from([0.0, 3.0]),
    sinks=st.booleans(),
    block_size=st.sampled_from([16, 32]),
)
def test_any_batch(
    decodes: list[int],
    prefills: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    window: int,
    soft_cap: float,
    sinks: bool,
    block_size: int,
) -> None:
    rows = [(1, length) for length in decodes] + [(count, before + count) for count, before in prefills]
    if rows:
        spec = spec_of(*heads, dim, sliding_window=window, soft_cap=soft_cap, sinks=sinks)
        check(spec, rows, block_size, share=1)


def test_the_contracts_reference_agrees() -> None:
    case = make_case(spec_of(sinks=True, sliding_window=20), MIXED, 16)
    torch.testing.assert_close(attend(case, backend_of(case.spec)), reference_of(case), atol=2e-5, rtol=1e-4)


def test_a_plan_serves_other_lengths_after_update() -> None:
    """As a replay does: the same tensors, filled with another step's lengths; host lengths are not looked at."""
    spec = spec_of()
    backend = backend_of(spec)
    case = make_case(spec, [(1, 130), (1, 64), (1, 20)], 16)
    cache, tables = fill(case, backend, torch.float32)
    batch = make_batch(case, tables, static=True)
    batch.seq_lens.fill_(1)
    batch.host.seq_lens[:] = 1
    plan = backend.plan(batch)
    inputs = GQAInputs(query=case.query, cache=cache)
    backend.run(inputs, plan)
    batch.seq_lens.copy_(torch.tensor([130, 64, 20]))
    assert backend.update(plan, batch) is plan
    torch.testing.assert_close(backend.run(inputs, plan), reference_of(case), atol=2e-5, rtol=1e-4)
    assert not backend._workspace.arrivals.any(), "the joiner leaves the counters as it found them"


CAPTURED = {  # steps of at most 48 tokens in 7 rows, which one captured launch serves
    "no decode": [(20, 51), (28, 28)],
    "decodes of one part and of several": [(1, 40), (1, 3), (1, 131), (5, 5), (20, 80)],
    "prompts of one token, first and among others": [(1, 1), (1, 70), (9, 20), (1, 33), (11, 30)],
    "every row and every token": [(1, 17), (1, 90), (1, 16), (3, 3), (1, 1), (40, 64), (1, 12)],
    "almost nothing": [(2, 2)],
}


@pytest.mark.parametrize(
    ("fields", "block_rows", "join"),
    [("plain", 32, True), ("all", 16, False), pytest.param("all", 32, True, marks=FULL)],
)
def test_a_captured_step_with_prompts_serves_any_of_its_key(fields: str, block_rows: int, join: bool) -> None:
    """Planned with the first and updated to the others, as replays are: all else that a plan holds is of the key."""
    configs = replace(
        SMALL,
        decode=replace(SMALL.decode, join=join, programs_per_unit=14),
        long=replace(SMALL.long, block_rows=block_rows),
    )
    backend = backend_of(spec_of(**FIELDS[fields]), configs=configs)
    plan = None
    for what, rows in CAPTURED.items():
        case = make_case(backend.spec, rows, 16)
        cache, tables = fill(case, backend, torch.float32)
        tokens = sum(count for count, _ in rows)
        batch = make_batch(case, tables, pad_rows=7 - len(rows), pad_tokens=48 - tokens, static=True)
        batch.host.query_lens[:] = batch.host.seq_lens[:] = batch.host.num_decodes = 0
        plan = backend.plan(batch) if plan is None else backend.update(plan, batch)
        assert plan.parts > 1
        query = torch.cat((case.query, torch.full((48 - tokens, *case.query.shape[1:]), 0.5)))
        found = backend.run(GQAInputs(query=query, cache=cache, sinks=case.sinks), plan)
        assert found.isfinite().all(), "padding must be finite"
        wanted = truth(case, torch.float32, torch.float32)
        torch.testing.assert_close(
            found[:tokens].double(), wanted, atol=2e-5, rtol=1e-4, msg=lambda m, w=what: f"{w}: {m}"
        )
        assert not backend._workspace.arrivals.any(), "the joiner leaves the counters as it found them"


def test_batch_invariant_rows_are_the_same_in_any_batch() -> None:
    """A row alone, in a batch, and with its prompt cut elsewhere: the same order of sums.

    Not the same bits here: the interpreter's products are the host's BLAS, where a line's place in a block matters.
    """
    spec = spec_of(sliding_window=30)
    case = make_case(spec, [(1, 33), (1, 80), (12, 50)], 16)
    backend = backend_of(spec, batch_invariant=True)
    cache, tables = fill(case, backend, torch.float32)
    together = backend.run(GQAInputs(query=case.query, cache=cache), backend.plan(make_batch(case, tables)))
    last = replace_rows(case, rows=[(5, 50)], first=2, query=case.query[-5:])
    alone = backend.run(GQAInputs(query=last.query, cache=cache), backend.plan(make_batch(last, tables[2:])))
    torch.testing.assert_close(alone, together[-5:], atol=1e-6, rtol=0)
    second = replace_rows(case, rows=[(1, 80)], first=1, query=case.query[1:2])
    alone = backend.run(GQAInputs(query=second.query, cache=cache), backend.plan(make_batch(second, tables[1:2])))
    torch.testing.assert_close(alone, together[1:2], atol=1e-6, rtol=0)


def replace_rows(case: Any, *, rows: list[tuple[int, int]], first: int, query: torch.Tensor) -> Any:
    """Another step on the same contexts."""
    return replace(case, rows=rows, tables=case.tables[first:], query=query)


def test_the_step_plans_on_the_host_only_what_launches_there_are() -> None:
    case = make_case(spec_of(), MIXED, 16)
    backend = backend_of(case.spec)
    eager = backend.plan(make_batch(case, case.tables))
    assert (eager.num_decodes, eager.num_rows, eager.has_holes) == (2, 6, False)
    captured = backend.plan(make_batch(case, case.tables, pad_rows=2, pad_tokens=3, static=True))
    assert (captured.num_decodes, captured.num_rows, captured.has_holes) == (8, 8, True)
    assert captured.context.decodes_apart and not eager.context.decodes_apart
    assert np.array_equal(captured.context.seq_lens[-2:], [1, 1])
    invariant = backend_of(case.spec, batch_invariant=True)
    planned = invariant.plan(make_batch(case, case.tables, pad_rows=2, pad_tokens=3, static=True))
    assert (planned.num_decodes, planned.context.decodes_apart) == (0, False)
    alone = make_case(case.spec, [(5, 9)], 16)
    planned = backend.plan(make_batch(alone, alone.tables, pad_tokens=3, static=True))
    assert (planned.num_decodes, planned.context.decodes_apart) == (0, False), "a single row is no decode"
