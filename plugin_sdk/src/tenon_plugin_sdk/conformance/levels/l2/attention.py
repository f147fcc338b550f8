"""Attention over paged caches: written, read, shared, permuted, padded and poisoned, through the contract alone.

The bytes of a cache are the platform's, so blocks are poisoned and inspected through `import_blocks` and
`export_blocks`, whose own round trip is checked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend, AttentionKernel
from tenon_platforms.batch import GQAInputs
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.torch_dtypes import to_torch

from ...buffers import Buffers
from ...cases.draws import explore
from ...cases.kept import draw_kept, kept
from ...cases.paged import PagedDraw, PagedWorld, drawn_steps, edge_steps, make_batch, make_world
from ...cases.specs import claimed
from ...compare import assert_close, assert_equal, assert_kept
from ...profile import Profile
from ...registry import Case, Check, ConformanceError
from ...subject import Subject
from ...truth.attention import attend

NAN = float("nan")
FAR_SLOTS = 40_000  # past 2^15
FAR_BYTES = 9 << 30  # past 2^31 elements of 4 bytes


def backend_of(subject: Subject, spec: AttentionSpec) -> AttentionBackend:
    """The backend that the engine would use."""
    kernel = subject.choose(spec, subject.device)
    if not isinstance(kernel, AttentionKernel):
        raise ConformanceError(f"the offer for attention answered {type(kernel).__name__}, expected AttentionKernel")
    return kernel.backend


def block_size_of(backend: AttentionBackend) -> int:
    """A small legal block size."""
    least = backend.layout.kernel_block_size
    return least if least >= 8 else least * -(-16 // least)


def fill_cache(subject: Subject, backend: AttentionBackend, world: PagedWorld) -> Any:
    """One layer's cache: every block but the null block poisoned, then the sequences written."""
    (cache,) = backend.allocate(world.num_blocks, world.block_size, 1)
    poison_blocks(subject, backend, cache, list(range(1, world.num_blocks)), world.block_size)
    for row, length in enumerate(world.lengths):
        start = world.visible_from(row) // world.block_size * world.block_size  # blocks are released whole
        key, value = (part[row][start:].to(to_torch(world.spec.dtype)) for part in (world.keys, world.values))
        write(subject, backend, cache, key, value, world.slots(row, start, length))
    return cache


def poison_blocks(subject: Subject, backend: AttentionBackend, cache: Any, blocks: list[int], block_size: int) -> None:
    """Fill whole blocks with NaN."""
    shape = (len(blocks), 2, block_size, backend.layout.num_kv_heads, backend.layout.head_dim)
    canonical = torch.full(shape, NAN, dtype=to_torch(backend.layout.canonical_dtype))
    backend.import_blocks(cache, subject.to_device(_ints(blocks)), subject.to_device(canonical))
    subject.device.synchronize()


def write(subject: Subject, backend: AttentionBackend, cache: Any, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write keys and values, host [tokens, kv heads, dim], at slots."""
    buffers = Buffers(subject)
    backend.write_kv(
        buffers.put("key", key, "strided"), buffers.put("value", value, "strided"), cache, buffers.put("slots", slots)
    )
    subject.device.synchronize()
    buffers.check()


def read_blocks(subject: Subject, backend: AttentionBackend, cache: Any, blocks: list[int]) -> Tensor:
    """Canonical form of blocks, on the host: [n, 2, block_size, kv heads, dim]."""
    return subject.to_host(backend.export_blocks(cache, subject.to_device(_ints(blocks))))


def run_step(subject: Subject, profile: Profile, spec: AttentionSpec, draw: PagedDraw, *, shift: bool = True) -> None:
    """One step on a poisoned world, against float64; then nothing outside may have changed."""
    backend = backend_of(subject, spec)
    world = make_world(spec, draw, block_size_of(backend))
    random = torch.Generator().manual_seed(draw.seed + 1)
    tokens = sum(world.query_lens)
    query = torch.randn((tokens, spec.num_heads, spec.head_dim), generator=random).to(to_torch(spec.dtype))
    sinks = torch.randn(spec.num_heads, generator=random).to(to_torch(spec.dtype)) if spec.sinks else None
    parts = query.split(world.query_lens)
    if 0 <= draw.poisoned < len(parts):
        parts[draw.poisoned].fill_(NAN)
    with subject.device.inference_context():
        cache = fill_cache(subject, backend, world)
        before = read_blocks(subject, backend, cache, list(range(world.num_blocks)))
        batch = make_batch(subject, world)
        buffers = Buffers(subject)
        padded = torch.zeros((batch.key.tokens, *query.shape[1:]), dtype=query.dtype)
        padded[:tokens] = query
        inputs = GQAInputs(
            query=buffers.put("query", padded, "strided"),
            cache=cache,
            sinks=None if sinks is None else buffers.put("sinks", sinks),
        )
        found = subject.to_host(backend.run(inputs, backend.plan(batch)))
        if tuple(found.shape) != tuple(padded.shape):
            raise ConformanceError(f"attention returned {list(found.shape)} for queries of {list(padded.shape)}")
        for row, (asked, part) in enumerate(zip(parts, found[:tokens].split(world.query_lens), strict=True)):
            if row == draw.poisoned:
                continue
            truth = attend(spec, asked, world.keys[row], world.values[row], sinks)
            what = f"attention of row {row} ({world.query_lens[row]} of {world.lengths[row]} tokens)"
            assert_close(part, truth, spec.dtype, what=what)
        if not bool(found[tokens:].isfinite().all()):
            raise ConformanceError(
                "padding tokens are not finite: the layers behind would spread it. They may name a real row, here one"
                " of NaN: leave out tokens past num_valid"
                if draw.poisoned >= 0
                else "padding tokens are not finite: the layers behind would spread it"
            )
        buffers.check()
        after = read_blocks(subject, backend, cache, list(range(world.num_blocks)))
        assert_equal(after, before, what="the KV cache after `run`, which only reads it")


def attention(subject: Subject, profile: Profile, case: Case) -> None:
    spec: AttentionSpec = case.value
    block = block_size_of(backend_of(subject, spec))
    explore(
        profile,
        edge_steps(profile, block),
        drawn_steps(profile, block),
        lambda draw: run_step(subject, profile, spec, draw),
    )


def kv_cache(subject: Subject, profile: Profile, case: Case) -> None:
    """Writes land where slots say and nowhere else; blocks are copied, exported and imported whole."""
    spec: AttentionSpec = case.value
    backend = backend_of(subject, spec)
    size, layout = block_size_of(backend), backend.layout
    random = torch.Generator().manual_seed(profile.salted(11))
    shape = (8, 2, size, layout.num_kv_heads, layout.head_dim)
    canonical = kept(draw_kept(random, shape, DType.FLOAT32, layout.dtype), layout.dtype)
    with subject.device.inference_context():
        caches = backend.allocate(9, size, 2)
        _check_bytes(backend, caches, 9, size)
        zeros = read_blocks(subject, backend, caches[0], [0])
        assert_equal(zeros, torch.zeros_like(zeros), what="the null block after allocate")
        order = [3, 1, 8, 5, 7, 2, 4, 6]
        for cache in caches:
            backend.import_blocks(cache, subject.to_device(_ints(order)), subject.to_device(canonical))
        held = read_blocks(subject, backend, caches[1], order)
        assert_kept(held, canonical, layout.dtype, what="export after import")
        want = canonical[[order.index(block) for block in range(1, 9)]]
        held = read_blocks(subject, backend, caches[0], list(range(1, 9)))
        assert_kept(held, want, layout.dtype, what="blocks in order")
        backend.copy_blocks(caches, subject.to_device(_ints([3, 8])), subject.to_device(_ints([2, 5])))
        want[1], want[4] = want[2].clone(), want[7].clone()
        for layer, cache in enumerate(caches):
            held = read_blocks(subject, backend, cache, list(range(1, 9)))
            assert_kept(held, want, layout.dtype, what=f"layer {layer} after copy_blocks")
        _scatter(subject, backend, caches[0], want, size, random, spec.dtype)
        held = read_blocks(subject, backend, caches[1], list(range(1, 9)))
        assert_kept(held, want, layout.dtype, what="another layer's cache after write_kv")
        zeros = read_blocks(subject, backend, caches[0], [0])
        assert_equal(zeros, torch.zeros_like(zeros), what="the null block after writes elsewhere")


def _check_bytes(backend: AttentionBackend, caches: list[Any], num_blocks: int, size: int) -> None:
    """The pool is planned from the layout's bytes: a cache whose tensors take more overruns the device's memory."""
    said = num_blocks * backend.layout.block_bytes(size)
    for cache in caches:
        taken = sum(tensor.nbytes for tensor in _tensors(cache))
        if taken > said:
            raise ConformanceError(
                f"a cache of {num_blocks} blocks of {size} tokens takes {taken} bytes, its layout says {said}"
                " (padded_head_dim, dtype, scale_bytes_per_token): the engine would plan more blocks than there is"
                " memory for"
            )


def _tensors(cache: Any) -> Iterator[Tensor]:
    """The tensors of a cache, which is a tensor or plain Python around some."""
    if isinstance(cache, Tensor):
        yield cache
    elif isinstance(cache, (tuple, list)):
        for part in cache:
            yield from _tensors(part)
    elif isinstance(cache, dict):
        yield from _tensors(list(cache.values()))
    elif is_dataclass(cache):
        yield from _tensors([getattr(cache, item.name) for item in fields(cache)])


def far_slots(subject: Subject, profile: Profile, case: Case) -> None:
    """A pool so large that 16-bit slots overflow, and in the full profile 32-bit offsets of elements."""
    spec: AttentionSpec = case.value
    backend = backend_of(subject, spec)
    size, layout = block_size_of(backend), backend.layout
    last = FAR_SLOTS // size
    if profile.wide and subject.device.memory().free > 4 * FAR_BYTES:
        last = max(last, FAR_BYTES // layout.block_bytes(size))
    random = torch.Generator().manual_seed(profile.salted(12))
    with subject.device.inference_context():
        (cache,) = backend.allocate(last + 1, size, 1)
        blocks = [1, last // 2, last - 1, last]
        poison_blocks(subject, backend, cache, blocks, size)
        slots = [block * size + offset for block in blocks for offset in range(size)]
        shape = (len(slots), layout.num_kv_heads, layout.head_dim)
        key, value = (draw_kept(random, shape, spec.dtype, layout.dtype) for _ in range(2))
        write(subject, backend, cache, key, value, _ints(slots))
        want = kept(torch.stack((key, value), dim=1), layout.dtype).unflatten(0, (len(blocks), size)).transpose(1, 2)
        found = read_blocks(subject, backend, cache, blocks)
        assert_kept(found, want, layout.dtype, what=f"blocks {blocks} of a pool of {last + 1}")


def _scatter(
    subject: Subject,
    backend: AttentionBackend,
    cache: Any,
    held: Tensor,
    size: int,
    random: torch.Generator,
    dtype: DType,
) -> None:
    """Write single tokens here and there: a block's first and last, neighbours, zero tokens."""
    layout = backend.layout
    expected = held.clone()
    for slots in ([size], [9 * size - 1, 2 * size - 1, 2 * size], [], list(range(4 * size, 6 * size))[::-1]):
        shape = (len(slots), layout.num_kv_heads, layout.head_dim)
        key, value = (draw_kept(random, shape, dtype, layout.dtype) for _ in range(2))
        write(subject, backend, cache, key, value, _ints(slots))
        for place, slot in enumerate(slots):
            expected[slot // size - 1, 0, slot % size] = kept(key[place], layout.dtype)
            expected[slot // size - 1, 1, slot % size] = kept(value[place], layout.dtype)
        found = read_blocks(subject, backend, cache, list(range(1, 9)))
        assert_kept(found, expected, layout.dtype, what=f"the cache after write_kv at slots {slots[:4]}")


def chunks(subject: Subject, profile: Profile, case: Case) -> None:
    """A prompt in one step, in chunks, and token by token: the same output within both bounds."""
    spec: AttentionSpec = case.value
    block = block_size_of(backend_of(subject, spec))
    length = 2 * block + 5
    for cut in ((length,), (block, block + 5), (1,) * 3 + (length - 3,), (7, block, length - 7 - block)):
        done = 0
        for count in cut:
            run_step(subject, profile, spec, PagedDraw(((done, count),), seed=profile.salted(21)))
            done += count


def attention_specs(dtypes: Iterable[DType], kv_dtypes: Iterable[DType]) -> list[Case]:
    """Head counts, dims, windows, caps, sinks, both directions, every pair of types that is claimed."""
    cases = []
    caches = tuple(kv_dtypes)
    for dtype in dtypes:
        kv = dtype if dtype in caches or not caches else caches[0]
        base = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=16, scale=0.25, dtype=dtype, kv_dtype=kv)
        variants = {
            "gqa": base,
            "mha": replace(base, num_heads=3, num_kv_heads=3, head_dim=8, scale=0.35),
            "mqa": replace(base, num_heads=5, num_kv_heads=1, head_dim=32, scale=0.18),
            "window": replace(base, sliding_window=19),
            "window-1": replace(base, sliding_window=1),
        }
        if dtype is DType.FLOAT32:
            variants |= {
                "head-64": replace(base, num_heads=4, head_dim=64, scale=0.125),
                "head-80": replace(base, num_heads=2, num_kv_heads=1, head_dim=80, scale=0.11),
                "soft-cap": replace(base, soft_cap=3.0),
                "sinks": replace(base, sinks=True),
                "bidirectional": replace(base, causal=False),
                "window-sinks": replace(base, sliding_window=24, sinks=True),
            }
        others = [kv for kv in caches if kv != base.kv_dtype and kv in KV_TYPES]
        variants |= {f"kv-{kv}": replace(base, kv_dtype=kv) for kv in others}
        for name, kv in (("window-float8", DType.FLOAT8_E4M3), ("window-int8", DType.INT8)):
            if kv in others:
                variants[name] = replace(base, kv_dtype=kv, sliding_window=19, soft_cap=3.0)
        if DType.INT8 in others:
            variants["kv-int8-head-80"] = replace(base, kv_dtype=DType.INT8, head_dim=80, scale=0.11)
        cases += [Case(id=f"{dtype}-{name}", value=spec) for name, spec in variants.items()]
    return cases


KV_TYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3, DType.INT8)


def _specs(subject: Subject, profile: Profile) -> list[Case]:
    return attention_specs(claimed(subject.capabilities), subject.capabilities.kv_dtypes)


def _plain(subject: Subject, profile: Profile) -> list[Case]:
    wanted = ("gqa", "mha", "kv-")
    return [case for case in _specs(subject, profile) if case.id.split("-", 1)[1].startswith(wanted)]


def _first(subject: Subject, profile: Profile) -> list[Case]:
    first, *others = _specs(subject, profile)
    return [first, *(case for case in others if case.id == f"{first.value.dtype}-kv-int8")]


def _causal(subject: Subject, profile: Profile) -> list[Case]:
    return [case for case in _specs(subject, profile) if case.id.endswith(("gqa", "window"))]


CHECKS = (
    Check(
        level="L2", name="kv_cache", what="KV blocks written, copied, exported, imported", cases=_plain, run=kv_cache
    ),
    Check(level="L2", name="far_slots", what="slots of a large pool", cases=_first, run=far_slots),
    Check(level="L2", name="attention", what="paged attention against float64", cases=_specs, run=attention),
    Check(level="L2", name="chunks", what="prompts whole and in chunks", cases=_causal, run=chunks),
)


def _ints(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)
