"""Reference attention against float64, token by token: ragged batches over permuted, poisoned block tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from e4m3_values import codes, edges, held_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_platforms.attention import AttentionBackend, AttentionKernel
from tenon_platforms.batch import AttentionBatch, GQAInputs, HostBatch
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import ShapeKey
from tenon_platforms.torch_dtypes import movable, to_torch

pytestmark = pytest.mark.unit
NUM_ROWS = 10  # rows of the table; a batch holds some of them


def make_backend(*, batch_invariant: bool = False, **fields: object) -> AttentionBackend:
    known = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "scale": 0.3, "dtype": DType.FLOAT32}
    spec = AttentionSpec(**{"kv_dtype": DType.FLOAT32, **known, **fields})
    kernel = OpTable(platform="reference", batch_invariant=batch_invariant).choose(spec, Device())
    assert isinstance(kernel, AttentionKernel)
    return kernel.backend


class World:
    """Sequences with all their keys and values, and a cache in which they lie scattered between NaN blocks."""

    def __init__(self, backend: AttentionBackend, lengths: list[int], block_size: int, seed: int) -> None:
        self.backend, self.lengths, self.block_size = backend, lengths, block_size
        spec = backend.spec  # type: ignore[attr-defined]
        random = np.random.default_rng(seed)
        shape = (spec.num_kv_heads, spec.head_dim)
        self.keys = [torch.from_numpy(random.standard_normal((n, *shape))).float() for n in lengths]
        self.values = [torch.from_numpy(random.standard_normal((n, *shape))).float() for n in lengths]
        counts = [-(-n // block_size) for n in lengths]
        num_blocks = sum(counts) + 4
        (self.cache,) = backend.allocate(num_blocks, block_size, 1)
        self.cache[:, 1:] = float("nan")
        order = iter(random.permutation(np.arange(1, num_blocks)).tolist())
        self.rows = random.permutation(NUM_ROWS)[: len(lengths)].tolist()
        width = max(counts) + 2
        self.table = torch.full((NUM_ROWS + 1, width), num_blocks - 1, dtype=torch.int32)
        self.table[NUM_ROWS] = 0
        for row, count in zip(self.rows, counts, strict=True):
            self.table[row] = 0
            self.table[row, :count] = torch.tensor([next(order) for _ in range(count)], dtype=torch.int32)

    def slots(self, index: int, start: int, end: int) -> torch.Tensor:
        place = torch.arange(start, end)
        blocks = self.table[self.rows[index]][place // self.block_size]
        return (blocks * self.block_size + place % self.block_size).int()

    def write(self, visible_from: list[int]) -> None:
        """Write every sequence, but what its window has passed: that stays NaN, as a released block may be."""
        for index, length in enumerate(self.lengths):
            start = visible_from[index]
            self.backend.write_kv(
                self.keys[index][start:], self.values[index][start:], self.cache, self.slots(index, start, length)
            )

    def batch(self, queries: list[int]) -> AttentionBatch:
        """The last `queries[i]` tokens of every sequence; rows of one token come first."""
        starts = np.concatenate(([0], np.cumsum(queries))).astype(np.int32)
        tokens, rows = int(starts[-1]), len(queries)
        positions = np.concatenate([np.arange(n - q, n) for n, q in zip(self.lengths, queries, strict=True)])
        host = HostBatch(
            num_tokens=tokens,
            num_rows=rows,
            num_logits=rows,
            num_decodes=sum(q == 1 for q in queries),
            query_lens=np.array(queries, dtype=np.int32),
            seq_lens=np.array(self.lengths, dtype=np.int32),
            max_query=max(queries),
            max_seq=max(self.lengths),
        )
        return AttentionBatch(
            block_table=self.table,
            block_size=self.block_size,
            rows=torch.tensor(self.rows, dtype=torch.int32),
            query_starts=torch.from_numpy(starts),
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32),
            token_rows=torch.from_numpy(np.repeat(np.arange(rows, dtype=np.int32), queries)),
            positions=torch.from_numpy(positions.astype(np.int32))[None],
            num_valid=torch.tensor([tokens, rows, rows], dtype=torch.int32),
            key=ShapeKey(tokens=tokens, rows=rows, logits=rows, max_query=max(queries), blocks=self.table.shape[1]),
            host=host,
        )

    def exact(self, query: torch.Tensor, queries: list[int], sinks: torch.Tensor | None) -> np.ndarray:
        """The definition, one token and head at a time, in float64."""
        spec = self.backend.spec  # type: ignore[attr-defined]
        out, token = np.zeros(tuple(query.shape)), 0
        for index, count in enumerate(queries):
            length = self.lengths[index]
            keys, values = (_held(part[index], spec.kv_dtype).numpy() for part in (self.keys, self.values))
            for position in range(length - count, length):
                last = position + 1 if spec.causal else length
                first = max(position - spec.sliding_window + 1, 0) if spec.sliding_window else 0
                for head in range(spec.num_heads):
                    group = head // (spec.num_heads // spec.num_kv_heads)
                    scores = keys[first:last, group] @ query[token, head].double().numpy() * spec.scale
                    if spec.soft_cap:
                        scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
                    weights = np.exp(scores)
                    total = weights.sum() + (np.exp(float(sinks[head])) if sinks is not None else 0.0)
                    out[token, head] = weights @ values[first:last, group] / total
                token += 1
        return out


def _held(written: torch.Tensor, kv_dtype: DType) -> torch.Tensor:
    """What a cache of this type holds of what was written, float64."""
    if kv_dtype is DType.FLOAT8_E4M3:
        return held_of(written).view(torch.float8_e4m3fn).double()
    return written.to(to_torch(kv_dtype)).double()


def check(
    world: World, queries: list[int], *, sinks: torch.Tensor | None = None, seed: int = 0, atol: float = 3e-5
) -> torch.Tensor:
    spec = world.backend.spec  # type: ignore[attr-defined]
    window = spec.sliding_window
    passed = [max(n - q + 1 - window, 0) if window else 0 for n, q in zip(world.lengths, queries, strict=True)]
    world.write(passed)
    query = torch.from_numpy(np.random.default_rng(seed).standard_normal((sum(queries), spec.num_heads, spec.head_dim)))
    query = query.float()
    plan = world.backend.plan(world.batch(queries))
    found = world.backend.run(GQAInputs(query=query, cache=world.cache, sinks=sinks), plan)
    assert found.dtype == query.dtype
    np.testing.assert_allclose(found.double().numpy(), world.exact(query, queries, sinks), atol=atol)
    return found


def split(lengths: list[int], decodes: int, random: np.random.Generator) -> list[int]:
    return [1 if i < decodes or n == 1 else int(random.integers(2, n + 1)) for i, n in enumerate(lengths)]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    decodes=st.integers(0, 6),
    block_size=st.sampled_from([1, 3, 8, 16]),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    window=st.sampled_from([0, 1, 5, 16, 100]),
    soft_cap=st.sampled_from([0.0, 2.0]),
    has_sinks=st.booleans(),
    one_by_one=st.booleans(),
    kv_dtype=st.sampled_from([DType.FLOAT32, DType.FLOAT8_E4M3]),
    seed=st.integers(0, 1000),
)
def test_ragged_batches_equal_the_definition(
    lengths: list[int],
    decodes: int,
    block_size: int,
    heads: tuple[int, int],
    window: int,
    soft_cap: float,
    has_sinks: bool,
    one_by_one: bool,
    kv_dtype: DType,
    seed: int,
) -> None:
    backend = make_backend(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        sliding_window=window,
        soft_cap=soft_cap,
        sinks=has_sinks,
        batch_invariant=one_by_one,
        kv_dtype=kv_dtype,
    )
    random = np.random.default_rng(seed)
    pairs = sorted(zip(lengths, split(lengths, decodes, random), strict=True), key=lambda pair: pair[1] != 1)
    world = World(backend, [n for n, _ in pairs], block_size, seed)
    sinks = torch.from_numpy(random.standard_normal(heads[0])).float() if has_sinks else None
    check(world, [q for _, q in pairs], sinks=sinks, seed=seed)


def test_bidirectional_attention_sees_the_whole_sequence() -> None:
    check(World(make_backend(causal=False), [9, 4], 4, 0), [9, 4])


def test_decode_and_prefill_of_the_same_token_agree() -> None:
    backend = make_backend(sliding_window=6)
    whole = check(World(backend, [20], 4, 3), [20])
    last = check(World(backend, [20], 4, 3), [1])
    world = World(backend, [20], 4, 3)
    world.write([0])
    query = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 4, 8))).float()
    again = backend.run(GQAInputs(query=query[-1:], cache=world.cache), backend.plan(world.batch([1])))
    torch.testing.assert_close(again[0], whole[-1], rtol=0, atol=1e-5)
    assert last.shape == (1, 4, 8)


def test_one_by_one_is_bitwise_the_same_in_any_batch() -> None:
    backend = make_backend(batch_invariant=True)
    world = World(backend, [7, 31, 12], 4, 1)
    world.write([0, 0, 0])
    query = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    together = backend.run(GQAInputs(query=query, cache=world.cache), backend.plan(world.batch([1, 1, 1])))
    for index in range(3):
        single = World(backend, [7, 31, 12], 4, 1)
        single.cache, single.table = world.cache, world.table
        single.lengths, single.rows = [world.lengths[index]], [world.rows[index]]
        alone = backend.run(
            GQAInputs(query=query[index : index + 1], cache=world.cache), backend.plan(single.batch([1]))
        )
        assert torch.equal(alone[0], together[index])


def test_values_beyond_an_e4m3_cache_weigh_as_its_last() -> None:
    world = World(make_backend(kv_dtype=DType.FLOAT8_E4M3), [9, 14], 4, 0)
    world.keys = [part * 0.1 for part in world.keys]
    world.values = [part * 500 for part in world.values]
    found = check(world, [1, 9], atol=0.01)
    assert found.isfinite().all()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16])
def test_an_e4m3_cache_rounds_to_even_and_saturates(dtype: DType) -> None:
    """Written by the backend and by the composite, and imported from a canonical form of another type."""
    backend = make_backend(kv_dtype=DType.FLOAT8_E4M3, dtype=dtype)
    some = edges().to(to_torch(dtype))
    given = torch.cat((some, some.flip(0)))[: len(some) // 16 * 32].view(-1, 2, 2, 8)  # [tokens, kv, kv heads, dim]
    tokens = len(given)
    blocks, slots = torch.arange(1, tokens + 1).int(), torch.arange(tokens, 2 * tokens).int()
    written, fused, brought = (backend.allocate(2, tokens, 1)[0] for _ in range(3))
    backend.write_kv(given[:, 0], given[:, 1], written, slots)
    spec = QKNormRopeKVWriteSpec(num_heads=4, num_kv_heads=2, head_dim=8, dtype=dtype, layout_id=backend.layout.id)
    kernel = OpTable(platform="reference").choose(spec, backend)
    qkv = torch.cat((torch.zeros(tokens, 32, dtype=given.dtype), given.flatten(1)), dim=-1)
    kernel.run(qkv, torch.zeros(1, tokens).int(), None, None, None, fused, slots)
    backend.import_blocks(brought, blocks[:1], given.transpose(0, 1)[None])
    want = held_of(given).transpose(0, 1)  # [kv, tokens, kv heads, dim]
    for cache in (written, fused, brought):
        assert torch.equal(codes(backend.export_blocks(cache, blocks[:1]))[0], want)
        assert not cache[:, 0].float().any()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3])
def test_blocks_go_through_canonical_form_and_back(dtype: DType) -> None:
    backend = make_backend(kv_dtype=dtype)
    source, target = backend.allocate(9, 4, 2)
    source.copy_(torch.randn(source.shape))
    blocks, places = torch.tensor([5, 1, 8], dtype=torch.int32), torch.tensor([2, 7, 3], dtype=torch.int32)
    canonical = backend.export_blocks(source, blocks)
    assert canonical.shape == (3, 2, 4, 2, 8) and canonical.is_contiguous()
    backend.import_blocks(target, places, canonical)
    assert canonical.dtype == to_torch(dtype)
    assert torch.equal(movable(backend.export_blocks(target, places)), movable(canonical))
    untouched = torch.tensor([0, 1, 4, 5, 6, 8], dtype=torch.int32)
    assert not movable(backend.export_blocks(target, untouched)).any()
    key = torch.randn(1, 2, 8).to(to_torch(dtype)).float()
    backend.write_kv(key, -key, source, torch.tensor([5 * 4 + 2], dtype=torch.int32))
    exported = backend.export_blocks(source, blocks).float()
    assert torch.equal(exported[0, 0, 2], key[0]) and torch.equal(exported[0, 1, 2], -key[0])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT8_E4M3])
def test_copies_of_blocks_are_whole_and_in_every_layer(dtype: DType) -> None:
    backend = make_backend(kv_dtype=dtype)
    caches = backend.allocate(6, 4, 3)
    for cache in caches:
        cache.copy_(torch.randn(cache.shape))
    before = [movable(cache).clone() for cache in caches]
    backend.copy_blocks(caches, torch.tensor([1, 2], dtype=torch.int32), torch.tensor([4, 5], dtype=torch.int32))
    for cache, old in zip(map(movable, caches), before, strict=True):
        assert torch.equal(cache[:, [4, 5]], old[:, [1, 2]])
        assert torch.equal(cache[:, :4], old[:, :4])


def test_the_null_block_is_zero_and_the_layout_tells_its_bytes() -> None:
    backend = make_backend()
    (cache,) = backend.allocate(5, 16, 1)
    assert not cache[:, backend.layout.null_block].any()
    assert backend.layout.block_bytes(16) * 5 == cache.numel() * cache.element_size()


def test_the_kv_write_composite_splits_norms_and_stores() -> None:
    from tenon_platforms.ops.norm import RMSNormSpec

    backend, table = make_backend(), OpTable(platform="reference")
    norm = RMSNormSpec(hidden=8, eps=1e-6, dtype=DType.FLOAT32)
    spec = QKNormRopeKVWriteSpec(
        num_heads=4, num_kv_heads=2, head_dim=8, dtype=DType.FLOAT32, layout_id="x", q_norm=norm, k_norm=norm
    )
    (cache,) = backend.allocate(3, 4, 1)
    qkv, weight = torch.randn(2, 64), torch.randn(8)
    q = table.choose(spec, backend).run(
        qkv, torch.zeros(1, 2).int(), None, weight, weight * 2, cache, torch.tensor([5, 9], dtype=torch.int32)
    )
    heads = qkv.view(2, 8, 8)
    scaled = heads / heads.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()
    torch.testing.assert_close(q, scaled[:, :4] * weight)
    torch.testing.assert_close(cache[0, 1, 1], (scaled[:, 4:6] * weight * 2)[0])
    torch.testing.assert_close(cache[0, 2, 1], (scaled[:, 4:6] * weight * 2)[1])
    assert torch.equal(cache[1, 1, 1], heads[0, 6:])
