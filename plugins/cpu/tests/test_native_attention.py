"""The native attention against float64, on every instruction set of this CPU, over ragged batches and poisoned blocks.

The tolerance is derived: inputs are rounded to the cache's type before the truth is computed, so what remains is
float32 summation (n terms: n * 2^-24, relative to the sums of magnitudes) and the exponential's 2^-21, and half a step
of bfloat16 where tiles have the softmax's weights so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_cpu import native
from tenon_cpu.native_attention import NativeAttention, has_tiles, refuses
from tenon_cpu.ops.native_weights import Packer
from tenon_cpu.ops.offers import register_native
from tenon_platforms.batch import GQAInputs
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.quantized_kv import dequantize_heads, quantize_heads
from tenon_platforms.ops.table import OpTable
from tenon_platforms.torch_dtypes import to_torch

pytestmark = [pytest.mark.unit, pytest.mark.skipif(native.library() is None, reason="no native library")]
NAN = float("nan")
ISAS = native.ISAS[: native.ISAS.index(native.best_isa()) + 1] if native.library() else ()
ANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native.set_isa(request.param)
    native.set_threads(2)
    yield request.param
    native.set_isa("auto")


def spec_of(heads: int = 6, kv_heads: int = 2, dim: int = 16, window: int = 0, **fields: Any) -> AttentionSpec:
    given = {"dtype": DType.FLOAT32, "kv_dtype": DType.FLOAT32, **fields}
    return AttentionSpec(
        num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5, sliding_window=window, **given
    )


def truth(spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
    """One row in float64. query: [n, heads, dim], its last n tokens; key, value: [length, kv heads, dim]."""
    group, first = spec.num_heads // spec.num_kv_heads, len(key) - len(query)
    k, v = (part.double().repeat_interleave(group, dim=1) for part in (key, value))
    scores = torch.einsum("qhd,lhd->hql", query.double(), k) * spec.scale
    if spec.soft_cap:
        scores = (scores / spec.soft_cap).tanh() * spec.soft_cap
    place, at = torch.arange(len(key)), torch.arange(first, len(key))[:, None]
    visible = torch.ones(len(query), len(key), dtype=torch.bool) if not spec.causal else place <= at
    if spec.sliding_window:
        visible = visible & (place > at - spec.sliding_window)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        extra = sinks.double()[:, None, None].expand(-1, len(query), 1)
        weights = torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return torch.einsum("hql,lhd->qhd", weights, v)


def check(
    spec: AttentionSpec,
    rows: list[tuple[int, int]],
    block_size: int,
    make_batch: Callable[..., Any],
    *,
    shared: int = 0,
) -> None:
    """rows: (query length, sequence length), decodes first. shared: leading blocks that all rows have in common."""
    backend = NativeAttention(spec, Device())
    kv = to_torch(backend.layout.canonical_dtype)
    lengths = [length for _, length in rows]
    counts = [-(-length // block_size) for length in lengths]
    cache = backend.allocate(sum(counts) + 3, block_size, 1)[0]
    is_scaled = spec.kv_dtype == DType.INT8
    poison = -1 if is_scaled else NAN  # the bytes of a scale that is no number
    cache[1:] = poison
    order = (torch.randperm(sum(counts) + 2) + 1).tolist()
    common = [order.pop() for _ in range(min(shared, min(length // block_size for length in lengths)))]
    prefix = [torch.randn(len(common) * block_size, spec.num_kv_heads, spec.head_dim).to(kv) for _ in range(2)]
    tables, contexts = [], []
    for (count, length), blocks in zip(rows, counts, strict=True):
        table = common + [order.pop() for _ in range(blocks - len(common))]
        key, value = (torch.cat((part, torch.randn(length - len(part), *part.shape[1:]).to(kv))) for part in prefix)
        slots = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(length)])
        backend.write_kv(key, value, cache, slots.int())
        if is_scaled:  # what the codes say
            held = backend.export_blocks(cache, torch.tensor(table, dtype=torch.int32))
            key, value = (held[:, part].flatten(0, 1)[:length] for part in (0, 1))
        if spec.sliding_window:
            for index in range(max(length - count + 1 - spec.sliding_window, 0) // block_size):
                if table[index] not in common:
                    cache[table[index]] = poison
                    table[index] = 0
        tables.append(table)
        contexts.append((key, value))
    dtype = to_torch(spec.dtype)
    queries = [torch.randn(count, spec.num_heads, spec.head_dim).to(dtype) for count, _ in rows]
    sinks = torch.randn(spec.num_heads) if spec.sinks else None
    batch = make_batch([count for count, _ in rows], lengths, tables, block_size)
    found = backend.run(GQAInputs(query=torch.cat(queries), cache=cache, sinks=sinks), backend.plan(batch))
    assert found.dtype == dtype
    rounding = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    for query, (key, value), part in zip(queries, contexts, found.split([n for n, _ in rows]), strict=True):
        wanted = truth(spec, query, key, value, sinks)
        score = float(query.abs().amax()) * float(key.abs().amax()) * spec.head_dim * spec.scale
        error = (spec.head_dim * score + len(key)) * 2.0**-23 + 2.0**-19
        weights = 2.0**-8 if has_tiles(spec) else 0.0
        bound = (rounding + weights + error) * float(value.abs().amax())
        assert float((part.double() - wanted).abs().amax()) <= bound


ROWS = st.lists(st.integers(1, 300), min_size=0, max_size=6)
PREFILLS = st.lists(st.tuples(st.integers(2, 60), st.integers(0, 120)), min_size=0, max_size=2)


@ANY
@given(
    decodes=ROWS,
    prefills=PREFILLS,
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (9, 3), (8, 1), (10, 2), (14, 2)]),
    dim=st.sampled_from([16, 64, 80, 128]),
    window=st.sampled_from([0, 0, 1, 7, 33, 100]),
    block_size=st.sampled_from([16, 32, 64]),
    types=st.tuples(
        st.sampled_from([DType.FLOAT32, DType.BFLOAT16]),
        st.sampled_from([DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.INT8]),
    ),
    soft_cap=st.sampled_from([0.0, 0.0, 5.0]),
    sinks=st.booleans(),
    causal=st.sampled_from([True, True, False]),
    shared=st.integers(0, 2),
)
def test_against_float64(
    isa: str,
    make_batch: Any,
    decodes: list[int],
    prefills: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    window: int,
    block_size: int,
    types: tuple[DType, DType],
    soft_cap: float,
    sinks: bool,
    causal: bool,
    shared: int,
) -> None:
    rows = [(1, length) for length in decodes] + [(count, before + count) for count, before in prefills]
    dtypes = {"dtype": types[0], "kv_dtype": types[1]}
    spec = spec_of(*heads, dim, window, soft_cap=soft_cap, sinks=sinks, causal=causal, **dtypes)
    if rows:
        check(spec, rows, block_size, make_batch, shared=shared)


def test_long_contexts_are_split_and_merged(isa: str, make_batch: Any) -> None:
    check(spec_of(9, 3, 64), [(1, 4096), (1, 3), (1, 1025), (1, 1024), (300, 300), (17, 900)], 64, make_batch)


def test_a_token_does_not_depend_on_its_batch(isa: str, make_batch: Any) -> None:
    spec = spec_of(9, 3, 64)
    backend = NativeAttention(spec, Device())
    cache = backend.allocate(64, 64, 1)[0]
    cache.normal_()
    tables = [[5, 9, 20, 3, 8, 2, 1], [7, 6, 11], [30 + i for i in range(30)]]
    lengths = [430, 150, 1900]
    query = torch.randn(3, 9, 64)
    together = backend.run(GQAInputs(query=query, cache=cache), backend.plan(make_batch([1] * 3, lengths, tables, 64)))
    for row in range(3):
        batch = make_batch([1], [lengths[row]], [tables[row]], 64)
        alone = backend.run(GQAInputs(query=query[row : row + 1], cache=cache), backend.plan(batch))
        assert torch.equal(alone[0], together[row])


def test_padding_rows_are_finite_and_a_plan_is_updated_in_place(isa: str, make_batch: Any) -> None:
    spec = spec_of(6, 2, 32)
    backend = NativeAttention(spec, Device())
    cache = backend.allocate(8, 32, 1)[0]
    cache[1:].normal_()
    cache[0] = NAN  # nobody may read it here
    batch = make_batch([1] * 4, [70, 20, 1, 1], [[3, 1, 2], [4], [0], [0]], 32)
    batch.num_valid[1] = 2
    query = torch.randn(4, 6, 32)
    plan = backend.plan(batch)
    found = backend.run(GQAInputs(query=query, cache=cache), plan)
    assert found.isfinite().all()
    batch.seq_lens[0], batch.seq_lens[1] = 96, 1
    assert backend.update(plan, batch) is plan
    again = backend.run(GQAInputs(query=query, cache=cache), plan)
    fresh = make_batch([1, 1], [96, 1], [[3, 1, 2], [4]], 32)
    wanted = backend.run(GQAInputs(query=query[:2], cache=cache), backend.plan(fresh))
    assert torch.equal(again[:2], wanted)


@ANY
@given(
    heads=st.sampled_from([(1, 1), (6, 2)]),
    dim=st.sampled_from([16, 64, 80]),
    dtype=st.sampled_from([DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16]),
    size=st.sampled_from([1e-38, 1e-20, 1.0, 1e4]),
)
def test_int8_is_the_contracts(isa: str, heads: tuple[int, int], dim: int, dtype: DType, size: float) -> None:
    """As the contract's reference has it, but for a code where a value lies half way between two."""
    backend = NativeAttention(spec_of(*heads, dim, dtype=dtype, kv_dtype=DType.INT8), Device())
    cache = backend.allocate(4, 32, 1)[0]
    key, value = (torch.randn(40, heads[1], dim).mul_(size).to(to_torch(dtype)) for _ in range(2))
    key[3], value[5, 0, 1], key[7, 0, 0] = 0, NAN, float("inf")
    backend.write_kv(key, value, cache, torch.arange(32, 72, dtype=torch.int32))
    held = backend.export_blocks(cache, torch.tensor([1, 2], dtype=torch.int32)).transpose(0, 1).flatten(1, 2)[:, :40]
    for found, given_ in zip(held, (key, value), strict=True):
        wanted = dequantize_heads(quantize_heads(given_))
        step = given_.float().abs().amax(-1, keepdim=True) / 127
        near = (found - wanted).abs() <= 1.001 * step * (found != wanted)
        assert (near | (found.isnan() & wanted.isnan())).all()
        half = (found - given_.float()).abs() <= 0.501 * step + 2e-45
        assert (half | ~step.isfinite()).all()


def test_int8_blocks_are_exchanged_and_copied(isa: str) -> None:
    backend = NativeAttention(spec_of(kv_dtype=DType.INT8), Device())
    caches = backend.allocate(5, 32, 2)
    assert backend.layout.block_bytes(32) * 5 == caches[0].nbytes
    key, value = torch.randn(2, 64, 2, 16)
    backend.write_kv(key, value, caches[0], torch.arange(32, 96, dtype=torch.int32))
    source, target = torch.tensor([[1, 2], [4, 3]], dtype=torch.int32)
    canonical = backend.export_blocks(caches[0], source)
    assert canonical.dtype == torch.float32
    backend.copy_blocks(caches, source, target)
    assert torch.equal(backend.export_blocks(caches[0], target), canonical)
    backend.import_blocks(caches[1], source, canonical)
    assert torch.allclose(backend.export_blocks(caches[1], source), canonical, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("kv_dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16])
def test_canonical_form_is_what_was_written(isa: str, kv_dtype: DType) -> None:
    backend = NativeAttention(spec_of(kv_dtype=kv_dtype), Device())
    caches = backend.allocate(4, 32, 2)
    assert not any(cache.any() for cache in caches)
    assert backend.layout.block_bytes(32) * 4 == caches[0].nbytes
    both = torch.randn(32, 4, 16)
    key, value = both[:, :2], both[:, 2:]  # strided, as split from a merged projection
    backend.write_kv(key, value, caches[0], torch.arange(32, 64, dtype=torch.int32))
    blocks = torch.tensor([1], dtype=torch.int32)
    canonical = backend.export_blocks(caches[0], blocks)
    assert torch.equal(canonical[0, 0], key.to(canonical.dtype))
    assert torch.equal(canonical[0, 1], value.to(canonical.dtype))
    target = torch.tensor([3], dtype=torch.int32)
    backend.copy_blocks(caches, blocks, target)
    assert torch.equal(backend.export_blocks(caches[0], target), canonical)
    backend.import_blocks(caches[1], target, canonical)
    assert torch.equal(caches[1][3], caches[0][1])
    assert not caches[1][1].any()


def test_what_it_cannot_compute_is_refused() -> None:
    assert refuses(spec_of()) is None
    assert "multiple of" in str(refuses(spec_of(dim=20)))
    assert "float8_e4m3" in str(refuses(dataclasses.replace(spec_of(), kv_dtype=DType.FLOAT8_E4M3)))
    assert "group" in str(refuses(spec_of(7, 2)))


@pytest.mark.parametrize(
    ("isa_is", "dtype", "dim", "tiles"),
    [
        ("amx", DType.BFLOAT16, 64, True),
        ("amx", DType.BFLOAT16, 80, False),
        ("amx", DType.FLOAT32, 64, False),
        ("avx512", DType.BFLOAT16, 64, False),
    ],
)
def test_prompts_by_tiles_are_not_called_invariant(
    isa_is: str, dtype: DType, dim: int, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of one token has vectors, and weights that are not rounded."""
    monkeypatch.setattr(native, "current_isa", lambda: isa_is)
    table = OpTable(platform="cpu")
    register_native(table, Device(), Packer())
    spec = spec_of(dim=dim, dtype=dtype, kv_dtype=dtype)
    assert has_tiles(spec) is tiles
    assert table.choose(spec).flags.batch_invariant is not tiles
