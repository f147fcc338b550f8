"""What a KV cache of float8_e4m3 holds of keys and values: to nearest even, saturated, NaN kept, whoever writes.

A cast of its own makes NaN of what lies beyond on some devices, a minimum makes a number of NaN on others. Writing and
importing are looked at here; the composite that ends in a KV write beside the others (`rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.torch_dtypes import to_torch

from ...cases.specs import claimed
from ...compare import assert_equal
from ...profile import Profile
from ...registry import Case, Check
from ...subject import Subject
from ...truth.float8 import codes, edges, held_of
from .attention import backend_of, block_size_of, read_blocks, write

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
    size = block_size_of(backend)
    given = _tokens(spec, size)  # [blocks, 2, block_size, kv heads, dim]
    want, count = held_of(given), len(given)
    blocks = list(range(1, count + 1))
    lines = given.transpose(1, 2).flatten(0, 1)  # [tokens, 2, kv heads, dim]
    with subject.device.inference_context():
        written, brought = (backend.allocate(count + 1, size, 1)[0] for _ in range(2))
        slots = torch.arange(size, (count + 1) * size, dtype=torch.int32)
        write(subject, backend, written, lines[:, 0], lines[:, 1], slots)
        where = subject.to_device(torch.tensor(blocks, dtype=torch.int32))
        backend.import_blocks(brought, where, subject.to_device(given))
        for cache, what in ((written, "write_kv"), (brought, f"import_blocks of {spec.dtype}")):
            found = read_blocks(subject, backend, cache, blocks)
            assert_equal(
                codes(found), want, what=f"codes of float8_e4m3 after {what} of every value, tie, and what is beyond"
            )


def _tokens(spec: AttentionSpec, size: int) -> Tensor:
    """Every edge as a key and as a value, in whole blocks."""
    some = edges().to(to_torch(spec.dtype))
    block = size * spec.num_kv_heads * spec.head_dim
    keys = some.repeat(-(-block // len(some)) + 1)
    keys = keys[: max(len(some) // block + 1, 1) * block].view(-1, size, spec.num_kv_heads, spec.head_dim)
    return torch.stack((keys, keys.flip(0)), dim=1)


def _cases(subject: Subject, profile: Profile) -> Iterator[Case]:
    if DType.FLOAT8_E4M3 in subject.capabilities.kv_dtypes:
        for dtype in claimed(subject.capabilities):
            yield Case(id=f"{dtype}-float8_e4m3", value=replace(SPEC, dtype=dtype))


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
