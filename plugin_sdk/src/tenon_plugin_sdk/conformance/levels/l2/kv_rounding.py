"""What a KV cache of one byte holds of keys and values, whoever writes.

float8_e4m3: to nearest even, saturated, NaN kept. A cast of its own makes NaN of what lies beyond on some devices, a
minimum makes a number of NaN on others. int8: half a step off at most, of a scale that is the head's own, and nothing
of a head that is not finite. Writing and importing are looked at here; the composite that ends in a KV write beside the
others (`rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.torch_dtypes import to_torch

from ...cases.kept import ONE_BYTE
from ...cases.specs import claimed
from ...compare import assert_close, assert_equal
from ...profile import Profile
from ...registry import Case, Check, ConformanceError
from ...subject import Subject
from ...truth.float8 import codes, edges, held_of
from ...truth.int8_heads import greatest_kept, kept_within
from ...truth.rounding import Bounded
from .attention import NAN, backend_of, block_size_of, read_blocks, write

INFINITY = float("inf")

SPEC = AttentionSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    scale=0.25,
    dtype=DType.FLOAT32,
    kv_dtype=DType.FLOAT8_E4M3,
)


def kv_rounding(subject: Subject, profile: Profile, case: Case) -> None:
    spec: AttentionSpec = case.value
    backend = backend_of(subject, spec)
    if spec.kv_dtype is DType.INT8:
        given = _heads(spec, block_size_of(backend), profile.salted(13))
        for found, what in _held(subject, backend, given):
            _check_heads(found, given, spec.dtype, what)
        return
    given = _tokens(spec, block_size_of(backend))
    for found, what in _held(subject, backend, given):
        what = f"codes of float8_e4m3 after {what} of every value, tie, and what is beyond"
        assert_equal(codes(found), held_of(given), what=what)


def _held(subject: Subject, backend: AttentionBackend, given: Tensor) -> Iterator[tuple[Tensor, str]]:
    """What comes back of blocks, host [n, 2, block_size, kv heads, dim], that were written, and that were imported."""
    count, size = len(given), given.shape[2]
    blocks = list(range(1, count + 1))
    lines = given.transpose(1, 2).flatten(0, 1)  # [tokens, 2, kv heads, dim]
    with subject.device.inference_context():
        written, brought = (backend.allocate(count + 1, size, 1)[0] for _ in range(2))
        slots = torch.arange(size, (count + 1) * size, dtype=torch.int32)
        write(subject, backend, written, lines[:, 0], lines[:, 1], slots)
        where = subject.to_device(torch.tensor(blocks, dtype=torch.int32))
        backend.import_blocks(brought, where, subject.to_device(given))
        for cache, what in ((written, "write_kv"), (brought, f"import_blocks of {given.dtype}")):
            yield read_blocks(subject, backend, cache, blocks), what


def _heads(spec: AttentionSpec, size: int, seed: int) -> Tensor:
    """Heads of every size in one block: noise, one value, one that stands out, zeros, and some that are not finite."""
    random = torch.Generator().manual_seed(seed)
    shape = (4, 2, size, spec.num_kv_heads, spec.head_dim)
    low, high = (-7, 5) if spec.dtype is DType.FLOAT16 else (-30, 30)
    sizes = 2.0 ** torch.randint(low, high, (*shape[:-1], 1), generator=random)
    made = torch.randn(shape, generator=random) * sizes
    flat = made.view(-1, spec.head_dim)
    count = torch.arange(len(flat))
    kind, lane = count % 8, torch.randint(0, spec.head_dim, (len(flat),), generator=random)
    flat[kind == 0] = flat[kind == 0, :1].expand(-1, spec.head_dim)
    flat[count[kind == 1], lane[kind == 1]] *= 2**9
    flat[kind == 2] = 0
    odd = torch.tensor((NAN, INFINITY, -INFINITY))[count // 8 % 3]
    flat[count[kind == 3], lane[kind == 3]] = odd[kind == 3]
    return made.to(to_torch(spec.dtype))


def _check_heads(found: Tensor, given: Tensor, dtype: DType, what: str) -> None:
    whole = given.isfinite().all(dim=-1, keepdim=True)
    true = given.masked_fill(~whole, 0)
    within = kept_within(Bounded.exact(true), DType.INT8, dtype)
    assert_close(found, within, DType.FLOAT32, what=f"heads of int8 after {what}", valid=whole)
    greatest, most = found.abs().amax(dim=-1, keepdim=True), greatest_kept(true, dtype)
    assert_close(greatest, most, DType.FLOAT32, what=f"the greatest of heads of int8 after {what}", valid=whole)
    if not bool((found.isnan() | whole).all()):
        raise ConformanceError(
            f"after {what} a head with a value that is not finite reads as numbers: its scale must be none, so that"
            " what is not finite is seen and not answered"
        )


def _tokens(spec: AttentionSpec, size: int) -> Tensor:
    """Every edge of float8_e4m3 as a key and as a value, in whole blocks: [blocks, 2, block_size, kv heads, dim]."""
    some = edges().to(to_torch(spec.dtype))
    block = size * spec.num_kv_heads * spec.head_dim
    keys = some.repeat(-(-block // len(some)) + 1)
    keys = keys[: max(len(some) // block + 1, 1) * block].view(-1, size, spec.num_kv_heads, spec.head_dim)
    return torch.stack((keys, keys.flip(0)), dim=1)


def _cases(subject: Subject, profile: Profile) -> Iterator[Case]:
    for kv in ONE_BYTE:
        if kv in subject.capabilities.kv_dtypes:
            for dtype in claimed(subject.capabilities):
                yield Case(id=f"{dtype}-{kv}", value=replace(SPEC, dtype=dtype, kv_dtype=kv))
    if DType.INT8 in subject.capabilities.kv_dtypes:  # where scales lie, and what they are of, depends on the width
        for dim in (80, 128):
            wide = replace(SPEC, head_dim=dim, dtype=claimed(subject.capabilities)[0], kv_dtype=DType.INT8)
            yield Case(id=f"{wide.dtype}-int8-head-{dim}", value=wide)


CHECKS = (
    Check(
        level="L2",
        name="kv_rounding",
        what="keys and values as one-byte caches hold them",
        cases=_cases,
        run=kv_rounding,
        has_seed=False,
    ),
)
