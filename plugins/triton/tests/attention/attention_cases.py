"""Batches of paged attention and their truth in float64, for every test here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from e4m3_values import held_of
from torch import Tensor

from tenon_platforms.attention import AttentionBackend
from tenon_platforms.batch import AttentionBatch, GQAInputs, HostBatch
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.attention_reference import ReferenceAttention
from tenon_platforms.shapes import ShapeKey
from tenon_triton.attention import AttentionConfigs, DecodeConfig, TileConfig, TritonAttention
from tenon_triton.facts import DeviceFacts

NAN = float("nan")
FACTS = DeviceFacts(compute_units=4, shared_bytes=100_000)
SMALL = AttentionConfigs(  # small tiles: ragged edges, several parts and several blocks at sizes an interpreter can do
    decode=DecodeConfig(tile=16, warps=4, stages=1, programs_per_unit=4, min_tokens=16),
    short=TileConfig(tile=16, warps=4, stages=1, block_rows=16),
    long=TileConfig(tile=32, warps=4, stages=1, block_rows=32),
)


def spec_of(heads: int = 4, kv_heads: int = 2, dim: int = 16, **fields: Any) -> AttentionSpec:
    """A spec in float32, unless `fields` say otherwise."""
    given: dict[str, Any] = {"scale": dim**-0.5, "dtype": DType.FLOAT32, "kv_dtype": DType.FLOAT32, **fields}
    return AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, **given)


def backend_of(spec: AttentionSpec, **options: Any) -> TritonAttention:
    """A backend with small tiles."""
    options.setdefault("configs", SMALL)
    return TritonAttention(spec, Device(), options.pop("facts", FACTS), **options)


@dataclass(slots=True, kw_only=True)
class Case:
    """rows: (tokens of the step, length with them), decodes first. tables: blocks of each row."""

    spec: AttentionSpec
    rows: Sequence[tuple[int, int]]
    block_size: int
    num_blocks: int
    tables: list[list[int]]
    keys: list[Tensor]
    values: list[Tensor]
    query: Tensor
    sinks: Tensor | None


def make_case(spec: AttentionSpec, rows: Sequence[tuple[int, int]], block_size: int, *, share: int = 0) -> Case:
    """Random contexts in shuffled blocks; the first `share` whole blocks of later rows are the first row's."""
    counts = [-(-length // block_size) for _, length in rows]
    total = sum(counts) + 3
    order = (torch.randperm(total - 1) + 1).tolist()
    tables: list[list[int]] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for (count, length), blocks in zip(rows, counts, strict=True):
        table = [order.pop() for _ in range(blocks)]
        key, value = (torch.randn(length, spec.num_kv_heads, spec.head_dim) for _ in range(2))
        if tables:
            common = min(share, (length - count) // block_size, (rows[0][1] - rows[0][0]) // block_size)
            table[:common] = tables[0][:common]
            key[: common * block_size] = keys[0][: common * block_size]
            value[: common * block_size] = values[0][: common * block_size]
        tables.append(table)
        keys.append(key)
        values.append(value)
    return Case(
        spec=spec,
        rows=rows,
        block_size=block_size,
        num_blocks=total,
        tables=tables,
        keys=keys,
        values=values,
        query=torch.randn(sum(count for count, _ in rows), spec.num_heads, spec.head_dim),
        sinks=torch.randn(spec.num_heads) if spec.sinks else None,
    )


def fill(case: Case, backend: AttentionBackend, dtype: torch.dtype) -> tuple[Any, list[list[int]]]:
    """A cache that is NaN wherever no token was written; blocks that left the window are NaN, and null in tables."""
    cache = backend.allocate(case.num_blocks, case.block_size, 1)[0]
    one_layout = backend.layout.dims[0] == "block"
    (cache if one_layout else cache.transpose(0, 1))[1:] = NAN
    tables = [list(table) for table in case.tables]
    alive: set[int] = set()
    window = case.spec.sliding_window
    for (count, length), table, key, value in zip(case.rows, tables, case.keys, case.values, strict=True):
        slots = [table[p // case.block_size] * case.block_size + p % case.block_size for p in range(length)]
        backend.write_kv(key.to(dtype), value.to(dtype), cache, torch.tensor(slots, dtype=torch.int32))
        dropped = max(length - count + 1 - window, 0) // case.block_size if window else 0
        table[:dropped] = [0] * dropped
        alive.update(table)
    for block in range(1, case.num_blocks):
        if block not in alive:
            (cache if one_layout else cache.transpose(0, 1))[block] = NAN
    return cache, tables


def make_batch(
    case: Case, tables: list[list[int]], *, pad_rows: int = 0, pad_tokens: int = 0, static: bool = False
) -> AttentionBatch:
    """The batch; rows sit at shuffled places of the block table, padding rows are the dummy row at its end."""
    counts = [count for count, _ in case.rows]
    lengths = [length for _, length in case.rows]
    num_rows, tokens = len(counts), sum(counts)
    width = max(map(len, tables)) + 2
    places = torch.randperm(num_rows + 2)[:num_rows]
    table = torch.full((num_rows + 3, width), 0, dtype=torch.int32)
    for place, row in zip(places.tolist(), tables, strict=True):
        table[place, : len(row)] = torch.tensor(row, dtype=torch.int32)
    decode = max(counts) == 1
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    starts = np.concatenate((starts, starts[-1] + np.arange(1, pad_rows + 1) * decode)).astype(np.int32)
    position = [p for q, n in case.rows for p in range(n - q, n)] + [0] * (pad_rows if decode else pad_tokens)
    key = ShapeKey(
        tokens=len(position),
        rows=num_rows + pad_rows,
        logits=num_rows + pad_rows,
        max_query=1 if decode else (len(position) if static else max(counts)),
        blocks=width,
        static=static,
    )
    return AttentionBatch(
        block_table=table,
        block_size=case.block_size,
        rows=torch.cat((places, torch.full((pad_rows,), num_rows + 2))).int(),
        query_starts=torch.from_numpy(starts),
        seq_lens=torch.tensor(lengths + [1] * pad_rows, dtype=torch.int32),
        token_rows=torch.repeat_interleave(torch.arange(num_rows), torch.tensor(counts)).int(),
        positions=torch.tensor([position], dtype=torch.int32),
        num_valid=torch.tensor([tokens, num_rows, num_rows], dtype=torch.int32),
        key=key,
        host=HostBatch(
            num_tokens=tokens,
            num_rows=num_rows,
            num_logits=num_rows,
            num_decodes=next((i for i, q in enumerate(counts) if q != 1), num_rows),
            query_lens=np.array(counts, dtype=np.int32),
            seq_lens=np.array(lengths, dtype=np.int32),
            max_query=max(counts),
            max_seq=max(lengths),
        ),
    )


def truth(case: Case, kv: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Every valid token's output in float64, from inputs rounded as the kernels get them."""
    spec, outputs, start = case.spec, [], 0
    group = spec.num_heads // spec.num_kv_heads
    for (count, length), key, value in zip(case.rows, case.keys, case.values, strict=True):
        q = case.query[start : start + count].to(dtype).double()
        start += count
        k, v = (_held(part.to(dtype), kv).repeat_interleave(group, dim=1) for part in (key, value))
        scores = torch.einsum("qhd,lhd->hql", q, k) * spec.scale
        if spec.soft_cap:
            scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
        place, at = torch.arange(length), torch.arange(length - count, length)[:, None]
        visible = place <= at if spec.causal else torch.ones(count, length, dtype=torch.bool)
        if spec.sliding_window:
            visible = visible & (place > at - spec.sliding_window)
        scores = scores.masked_fill(~visible, float("-inf"))
        if case.sinks is not None:
            extra = case.sinks.double()[:, None, None].expand(-1, count, 1)
            weights = torch.cat((scores, extra), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        outputs.append(torch.einsum("hql,lhd->qhd", weights, v))
    return torch.cat(outputs)


def _held(written: Tensor, kv: torch.dtype) -> Tensor:
    """What a cache of this type holds of what was written, float64."""
    if kv == torch.float8_e4m3fn:
        return held_of(written).view(kv).double()
    return written.to(kv).double()


def attend(case: Case, backend: AttentionBackend, dtype: torch.dtype = torch.float32, **padding: Any) -> Tensor:
    """The backend's output of every token, padding included; queries are a view of a wider tensor, as of merged QKV."""
    cache, tables = fill(case, backend, dtype)
    batch = make_batch(case, tables, **padding)
    wide = torch.full((batch.key.tokens, case.spec.num_heads + 2, case.spec.head_dim), 0.5, dtype=dtype)
    wide[: len(case.query), : case.spec.num_heads] = case.query.to(dtype)
    inputs = GQAInputs(query=wide[:, : case.spec.num_heads], cache=cache, sinks=case.sinks)
    return backend.run(inputs, backend.plan(batch))


def check(
    spec: AttentionSpec,
    rows: Sequence[tuple[int, int]],
    block_size: int,
    *,
    share: int = 0,
    options: dict[str, Any] | None = None,
    atol: float = 2e-5,
    sizes: tuple[float, float] = (1.0, 1.0),
    **padding: Any,
) -> None:
    """The backend against float64 at these rows. sizes: of keys and values, which may lie beyond the cache's type."""
    from tenon_platforms.torch_dtypes import to_torch

    case = make_case(spec, rows, block_size, share=share)
    dtype, kv = to_torch(spec.dtype), to_torch(spec.kv_dtype)
    case.keys, case.values = (
        [part * size for part in held] for held, size in ((case.keys, sizes[0]), (case.values, sizes[1]))
    )
    found = attend(case, backend_of(spec, **(options or {})), dtype, **padding)
    assert found.isfinite().all(), "padding must be finite"
    wanted = truth(case, kv, dtype)
    torch.testing.assert_close(found[: len(wanted)].double(), wanted, atol=atol, rtol=1e-4 + atol)


def reference_of(case: Case) -> Tensor:
    """The contract's reference on the same case, computed in float32 throughout."""
    spec = replace(case.spec, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32)
    backend = ReferenceAttention(spec, Device(), one_by_one=False)
    cache, tables = fill(case, backend, torch.float32)
    batch = make_batch(case, tables)
    return backend.run(GQAInputs(query=case.query, cache=cache, sinks=case.sinks), backend.plan(batch))
