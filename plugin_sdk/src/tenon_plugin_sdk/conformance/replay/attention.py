"""Replays of rotation, KV writes and attention: recorded contexts, scattered over poisoned blocks as the kit does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.batch import GQAInputs
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.torch_dtypes import from_torch, to_torch

from ..buffers import Buffers
from ..cases.kept import kept
from ..cases.paged import PagedDraw, make_batch, make_world
from ..compare import assert_close
from ..levels.l2.attention import backend_of, block_size_of, fill_cache, poison_blocks, read_blocks
from ..registry import ConformanceError
from ..subject import Subject
from ..truth import layers
from ..truth.attention import attend
from ..truth.int8_heads import kept_within
from ..truth.rounding import Bounded
from .calling import call_rows
from .case_file import RecordedCase


def rope(subject: Subject, case: RecordedCase) -> None:
    spec: Any = case.spec
    q, k, positions = (case.inputs[name] for name in ("q", "k", "positions"))
    dtype, table = from_torch(q.dtype), rope_table(spec)
    want = [
        (name, layers.rope(Bounded.exact(x), positions, table, spec, dtype), dtype) for name, x in (("q", q), ("k", k))
    ]
    kernel, held = subject.choose(spec), subject.to_device(table)
    rows = {"q": q, "k": k, "positions": positions.T.contiguous()}
    call_rows(subject, kernel, rows, lambda t: kernel.run(t["q"], t["k"], t["positions"].T.contiguous(), held), want)


def qk_norm_rope_kv_write(subject: Subject, case: RecordedCase) -> None:
    """The query that comes back, and what the cache holds afterwards."""
    assert case.attention is not None
    backend = backend_of(subject, case.attention)
    spec: Any = replace(case.spec, layout_id=backend.layout.id)  # type: ignore[call-arg]
    kernel = subject.choose(spec, backend)
    qkv, positions = case.inputs["qkv"], case.inputs["positions"]
    table = None if spec.rope is None else rope_table(spec.rope)
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, block_size_of(backend)
    q, k, v = qkv.unflatten(-1, (-1, spec.head_dim)).split([heads, kv_heads, kv_heads], dim=1)
    num_blocks = -(-len(qkv) // size) + 4
    order = torch.randperm((num_blocks - 1) * size, generator=torch.Generator().manual_seed(len(qkv)))
    slots = (order[: len(qkv)] + size).int()  # recorded ones may be padding's, and of another block size
    norms = [case.inputs.get(name) for name in ("q_weight", "k_weight")]
    with subject.device.inference_context():
        (cache,) = backend.allocate(num_blocks, size, 1)
        blocks = list(range(1, num_blocks))
        poison_blocks(subject, backend, cache, blocks, size)
        buffers = Buffers(subject)
        found = subject.to_host(
            kernel.run(
                buffers.put("qkv", qkv),
                buffers.put("positions", positions),
                None if table is None else subject.to_device(table),
                *(None if weight is None else subject.to_device(weight) for weight in norms),
                cache,
                buffers.put("slots", slots),
            )
        )
        stored = read_blocks(subject, backend, cache, blocks).transpose(1, 2).flatten(0, 1)  # [slots, 2, heads, dim]
        buffers.check()
    mine = slots.long() - size
    turned = [_turned(part, spec, weight, positions, table) for part, weight in zip((q, k), norms, strict=True)]
    kv, canonical = case.attention.kv_dtype, backend.layout.canonical_dtype
    assert_close(found, turned[0], spec.dtype, what=f"q of {kernel.name}")
    for place, (want, name) in enumerate(((turned[1], "keys"), (Bounded.exact(v), "values"))):
        within = kept_within(want, kv, spec.dtype)
        assert_close(stored[mine, place], within, canonical, what=f"stored {name} of {kernel.name}")


def _turned(x: Tensor, spec: Any, weight: Tensor | None, positions: Tensor, table: Tensor | None) -> Bounded:
    found = Bounded.exact(x)
    if spec.q_norm is not None and weight is not None:
        norm = spec.q_norm
        found = layers.rms_norm(found, weight.double(), norm.eps, norm.weight_offset, spec.dtype)
    return found if table is None else layers.rope(found, positions, table, spec.rope, spec.dtype)


def attention(subject: Subject, case: RecordedCase) -> None:
    """Each row against its recorded context."""
    spec = case.spec
    assert isinstance(spec, AttentionSpec)
    backend = backend_of(subject, spec)
    world = make_world(spec, PagedDraw(rows=case.rows, seed=len(case.rows)), block_size_of(backend))
    for row, (before, now) in enumerate(case.rows):
        context = case.inputs[f"context.{row}"]  # [blocks, 2, block_size, kv_heads, head_dim]
        flat = context.transpose(0, 1).flatten(1, 2)[:, : before + now]
        written = flat.to(to_torch(spec.dtype))
        world.keys[row], world.values[row] = kept(written, spec.kv_dtype)
    query, sinks = case.inputs["query"], case.inputs.get("sinks")
    with subject.device.inference_context():
        cache = fill_cache(subject, backend, world)
        batch = make_batch(subject, world)
        buffers = Buffers(subject)
        inputs = GQAInputs(
            query=buffers.put("query", query),
            cache=cache,
            sinks=None if sinks is None else buffers.put("sinks", sinks),
        )
        found = subject.to_host(backend.run(inputs, backend.plan(batch)))
        buffers.check()
    if tuple(found.shape) != tuple(query.shape):
        raise ConformanceError(f"attention returned {list(found.shape)} for queries of {list(query.shape)}")
    counts = [now for _, now in case.rows]
    for row, (asked, part) in enumerate(zip(query.split(counts), found.split(counts), strict=True)):
        truth = attend(spec, asked, world.keys[row], world.values[row], sinks)
        assert_close(part, truth, spec.dtype, what=f"attention of row {row} (after {case.rows[row][0]} tokens)")
