"""The platform's attention against float64, over ragged batches, block tables out of order and poisoned blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_cpu.attention import CPUAttention, _split_by_length
from tenon_cpu.step_memo import StepMemo
from tenon_platforms.batch import GQAInputs
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec

pytestmark = pytest.mark.unit
NAN = float("nan")


def spec_of(heads: int = 6, kv_heads: int = 2, dim: int = 16, window: int = 0, **fields: Any) -> AttentionSpec:
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        scale=dim**-0.5,
        dtype=fields.pop("dtype", DType.FLOAT32),
        kv_dtype=fields.pop("kv_dtype", DType.FLOAT32),
        sliding_window=window,
        **fields,
    )


def truth(spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
    """Attention of one row in float64. query: [n, heads, dim] at positions first..; key, value: [length, kv, dim]."""
    group = spec.num_heads // spec.num_kv_heads
    k, v = (part.double().repeat_interleave(group, dim=1) for part in (key, value))
    scores = torch.einsum("qhd,lhd->hql", query.double(), k) * spec.scale
    place, at = torch.arange(len(key)), torch.arange(first, first + len(query))[:, None]
    visible = place <= at
    if spec.sliding_window:
        visible &= place > at - spec.sliding_window
    return torch.einsum("hql,lhd->qhd", scores.masked_fill(~visible, float("-inf")).softmax(-1), v)


def scatter_context(
    backend: CPUAttention, lengths: list[int], block_size: int, drop_before: list[int]
) -> tuple[Tensor, list[list[int]], list[tuple[Tensor, Tensor]]]:
    """A cache full of NaN but for its null block, with every row's context in random blocks; freed ones are null."""
    spec = backend.spec
    counts = [-(-length // block_size) for length in lengths]
    cache = backend.allocate(sum(counts) + 3, block_size, 1)[0]
    cache[:, 1:] = NAN
    order = (torch.randperm(sum(counts) + 2) + 1).tolist()
    tables, contexts = [], []
    for length, count, dropped in zip(lengths, counts, drop_before, strict=True):
        table = [order.pop() for _ in range(count)]
        key, value = (torch.randn(length, spec.num_kv_heads, spec.head_dim) for _ in range(2))
        slots = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(length)])
        backend.write_kv(key, value, cache, slots.int())
        for index in range(dropped // block_size):
            cache[:, table[index]] = NAN
            table[index] = 0
        tables.append(table)
        contexts.append((key, value))
    return cache, tables, contexts


def check(spec: AttentionSpec, rows: list[tuple[int, int]], block_size: int, make_batch: Callable[..., Any]) -> None:
    """rows: (query length, sequence length), decodes first."""
    backend = CPUAttention(spec, StepMemo(), Device())
    lengths = [length for _, length in rows]
    freed = [max(n - q + 1 - spec.sliding_window, 0) if spec.sliding_window else 0 for q, n in rows]
    cache, tables, contexts = scatter_context(backend, lengths, block_size, freed)
    queries = [torch.randn(count, spec.num_heads, spec.head_dim) for count, _ in rows]
    batch = make_batch([count for count, _ in rows], lengths, tables, block_size)
    found = backend.run(GQAInputs(query=torch.cat(queries), cache=cache), backend.plan(batch))
    parts = found.split([count for count, _ in rows])
    for query, (key, value), part in zip(queries, contexts, parts, strict=True):
        wanted = truth(spec, query, key, value, len(key) - len(query))
        torch.testing.assert_close(part.double(), wanted, atol=2e-5, rtol=1e-4)


ROWS = st.lists(st.integers(1, 150), min_size=0, max_size=6)
PREFILLS = st.lists(st.tuples(st.integers(2, 40), st.integers(0, 90)), min_size=0, max_size=2)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    decodes=ROWS,
    prefills=PREFILLS,
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (9, 3), (8, 1)]),
    dim=st.sampled_from([8, 16, 64]),
    window=st.sampled_from([0, 0, 1, 7, 33]),
    block_size=st.sampled_from([16, 32, 64]),
)
def test_against_float64(
    make_batch: Callable[..., Any],
    decodes: list[int],
    prefills: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    window: int,
    block_size: int,
) -> None:
    rows = [(1, length) for length in decodes] + [(count, before + count) for count, before in prefills]
    if rows:
        check(spec_of(*heads, dim, window), rows, block_size, make_batch)


def test_rows_of_very_different_lengths_are_split(make_batch: Callable[..., Any]) -> None:
    rows = [(1, 1500), (1, 3), (1, 1490), (1, 20), (1, 700)]
    assert _split_by_length([length for _, length in rows]) == [[0, 2], [4], [3, 1]]
    check(spec_of(), rows, 32, make_batch)


def test_equal_rows_stay_together_in_order() -> None:
    assert _split_by_length([64, 65, 70, 64]) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"soft_cap": 30.0}, "attention.soft_cap"),
        ({"sinks": True}, "attention.sinks"),
        ({"causal": False}, "attention.bidirectional"),
        ({"kv_dtype": DType.BFLOAT16}, "float32 only"),
    ],
)
def test_what_is_not_served_goes_to_the_reference(make_table: Any, fields: dict[str, Any], reason: str) -> None:
    table = make_table()
    table.choose(spec_of(**fields), torch.device("cpu"))
    (choice,) = table.choices
    assert choice.on_reference
    assert reason in dict(choice.refused)["paged bags"]


def test_blocks_are_copied_exported_and_imported() -> None:
    backend = CPUAttention(spec_of(), StepMemo(), Device())
    caches = backend.allocate(6, 32, 2)
    for cache in caches:
        cache.normal_()
    before = [cache.clone() for cache in caches]
    pairs = (torch.tensor([1, 2], dtype=torch.int32), torch.tensor([4, 5], dtype=torch.int32))
    backend.copy_blocks(caches, *pairs)
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache[:, 4:6], old[:, 1:3])
        assert torch.equal(cache[:, :4], old[:, :4])
    blocks = torch.tensor([3, 1], dtype=torch.int32)
    canonical = backend.export_blocks(caches[0], blocks)
    assert canonical.shape == (2, 2, 32, 2, 16)
    other = backend.allocate(6, 32, 1)[0]
    backend.import_blocks(other, blocks, canonical)
    assert torch.equal(other[:, blocks.long()], caches[0][:, blocks.long()])


def test_canonical_form_is_what_was_written() -> None:
    backend = CPUAttention(spec_of(), StepMemo(), Device())
    cache = backend.allocate(3, 16, 1)[0]
    key, value = torch.randn(16, 2, 16), torch.randn(16, 2, 16)
    backend.write_kv(key, value, cache, torch.arange(16, 32, dtype=torch.int32))
    canonical = backend.export_blocks(cache, torch.tensor([1], dtype=torch.int32))
    assert torch.equal(canonical[0, 0], key)
    assert torch.equal(canonical[0, 1], value)
    assert backend.layout.block_bytes(16) * 3 == cache.nbytes
    assert not backend.allocate(2, 16, 1)[0].any()
