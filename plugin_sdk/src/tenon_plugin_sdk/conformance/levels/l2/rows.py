"""Ops on the rows' device memory, which must be exact, and the composite that ends in a KV write."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tenon_platforms.batch import NUM_ROW_COLUMNS, HostBatch, RowState, StepInputs
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.shapes import ShapeKey
from tenon_platforms.torch_dtypes import to_torch

from ...buffers import Buffers
from ...cases import specs
from ...cases.draws import RowsDraw, edge_draws, explore, row_draws, values
from ...cases.kept import ONE_BYTE
from ...cases.weights import generator
from ...compare import assert_close, assert_equal
from ...profile import Profile
from ...registry import Case, Check, ConformanceError
from ...subject import Subject
from ...truth import layers
from ...truth.float8 import codes, held_of
from ...truth.int8_heads import kept_within
from ...truth.rounding import Bounded
from .attention import backend_of, block_size_of, poison_blocks, read_blocks
from .rowwise import positions_of

PLAIN_FILLS = ("normal", "mixed", "tiny", "zeros", "nan row")


def _state(subject: Subject, groups: int, rows: int, blocks: int, seed: int) -> tuple[RowState, dict[str, Tensor]]:
    """Rows' memory on the device, and the same on the host."""
    random = generator(seed)
    host = {
        "last_tokens": torch.randint(0, 500, (rows + 1,), generator=random, dtype=torch.int32),
        "params": torch.randint(-(2**31), 2**31 - 1, (rows + 1, NUM_ROW_COLUMNS), generator=random).int(),
        "block_tables": torch.randint(1, 900, (groups, rows + 1, blocks), generator=random, dtype=torch.int32),
        "counts": torch.zeros((1, 2, 8), dtype=torch.int32),
        "edits": torch.zeros((1, 2, 8)),
    }
    host["block_tables"][:, rows] = 0
    return RowState(**{name: subject.to_device(value) for name, value in host.items()}), host


def prepare_inputs(subject: Subject, profile: Profile, case: Case) -> None:
    spec: PrepareInputsSpec = case.value
    kernel = subject.choose(spec)
    sizes = ((1, 1, 0), (4, 4, 3), (3, 17, 0), (3, 29, 6), (5, 64, 1))
    for seed, (rows, tokens, padding) in enumerate(sizes, profile.salted(0)):
        state, host = _state(subject, len(spec.block_sizes), 8, 12, seed)
        random = np.random.default_rng(seed)
        cuts = np.sort(random.choice(np.arange(1, tokens), rows - 1, replace=False)) if rows > 1 else np.zeros(0, int)
        queries = np.diff(np.concatenate(([0], cuts, [tokens]))).astype(np.int32)
        ids = random.permutation(8)[:rows].astype(np.int32)
        most = 12 * min(spec.block_sizes)
        starts = random.integers(0, most - queries.max() + 1, rows)
        token_rows = np.repeat(np.arange(rows, dtype=np.int32), queries)
        place = np.arange(tokens) - np.repeat(np.concatenate(([0], np.cumsum(queries)[:-1])), queries)
        positions = (starts[token_rows] + place).astype(np.int32)
        given = random.integers(0, 500, tokens).astype(np.int32)
        given[random.random(tokens) < 0.4] = -1
        inputs = _inputs(subject, spec, ids, queries, token_rows, positions, given, padding)
        with subject.device.inference_context():
            found_ids, found_slots = kernel.run(inputs, state)
        found_ids = subject.to_host(found_ids)
        row_of = torch.from_numpy(ids[token_rows]).long()
        want_ids = torch.where(torch.from_numpy(given) < 0, host["last_tokens"][row_of], torch.from_numpy(given))
        assert_equal(found_ids[:tokens], want_ids, what=f"token ids of {rows} rows")
        for group, size in enumerate(spec.block_sizes):
            slots = subject.to_host(found_slots[group])
            where = torch.from_numpy(positions).long()
            want = host["block_tables"][group][row_of, where // size] * size + (where % size).int()
            assert_equal(slots[:tokens], want, what=f"slots of group {group}")
            if bool((slots[tokens:] >= size).any()) or bool((slots[tokens:] < 0).any()):
                raise ConformanceError(f"padding tokens go to slots {slots[tokens:].tolist()}, outside the null block")


def _inputs(
    subject: Subject,
    spec: PrepareInputsSpec,
    ids: np.ndarray,
    queries: np.ndarray,
    token_rows: np.ndarray,
    positions: np.ndarray,
    given: np.ndarray,
    padding: int,
) -> StepInputs:
    rows, tokens = len(ids), len(given)

    def put(array: np.ndarray, fill: int, extra: int) -> Tensor:
        padded = np.concatenate((array, np.full(extra, fill))).astype(np.int32)
        return subject.to_device(torch.from_numpy(padded))

    starts = np.concatenate(([0], np.cumsum(queries)))
    empty = subject.to_device(torch.zeros(rows, dtype=torch.int32))
    return StepInputs(
        key=ShapeKey(tokens=tokens + padding, rows=rows + 1, logits=rows, max_query=int(queries.max()), blocks=12),
        host=HostBatch(
            num_tokens=tokens,
            num_rows=rows,
            num_logits=rows,
            num_decodes=0,
            query_lens=queries,
            seq_lens=queries,
            max_query=int(queries.max()),
            max_seq=int(queries.max()),
        ),
        token_ids=put(given, 0, padding),
        positions=put(positions, 0, padding)[None],
        token_rows=put(token_rows, rows, padding),
        rows=put(ids, 8, 1),
        query_starts=put(starts, tokens, 1),
        seq_lens=put(queries, 1, 1),
        logit_index=empty,
        logit_rows=empty,
        targets=empty,
        write_places=empty,
        write_blocks=empty,
        num_valid=subject.to_device(torch.tensor([tokens, rows, rows], dtype=torch.int32)),
    )


def row_writes(subject: Subject, profile: Profile, case: Case) -> None:
    spec: RowWritesSpec = case.value
    kernel = subject.choose(spec)
    for seed, (entries, lines) in enumerate(((0, 0), (1, 0), (0, 1), (7, 3), (32, 8)), profile.salted(0)):
        state, host = _state(subject, spec.num_groups, 8, 12, seed)
        random = generator(seed + 50)
        total = host["block_tables"].numel()
        places = torch.randperm(total, generator=random)[:entries].int()
        blocks = torch.randint(1, 900, (entries,), generator=random, dtype=torch.int32)
        if entries > 4:  # an index that comes twice comes with the same value
            places[-1], blocks[-1] = places[0], blocks[0]
        rows = torch.randperm(9, generator=random)[:lines].int()
        params = torch.randint(-(2**31), 2**31 - 1, (lines, NUM_ROW_COLUMNS), generator=random).int()
        with subject.device.inference_context():
            buffers = Buffers(subject)
            kernel.run(
                state,
                buffers.put("places", places),
                buffers.put("blocks", blocks),
                buffers.put("rows", rows),
                buffers.put("params", params),
            )
        host["block_tables"].view(-1)[places.long()] = blocks
        host["params"][rows.long()] = params
        for name, want in host.items():
            assert_equal(subject.to_host(getattr(state, name)), want, what=f"{name} after row_writes")
        buffers.check()


def qk_norm_rope_kv_write(subject: Subject, profile: Profile, case: Case) -> None:
    """The query it returns and the keys and values it stores, over the layout that attention reads."""
    spec, attention = case.value
    backend = backend_of(subject, attention)
    spec = replace(spec, layout_id=backend.layout.id)
    kernel = subject.choose(spec, backend)
    dtype, dim, size = to_torch(spec.dtype), spec.head_dim, block_size_of(backend)
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    table = None if spec.rope is None else rope_table(spec.rope)
    offset = 0.0 if spec.q_norm is None else spec.q_norm.weight_offset
    weights = [
        (torch.randn(dim, generator=generator(profile.salted(60 + i))) * 0.3 + 1 - offset).to(dtype) for i in range(2)
    ]
    norms = [None if spec.q_norm is None else subject.to_device(weight) for weight in weights]
    held = None if table is None else subject.to_device(table)

    def run(draw: RowsDraw) -> None:
        qkv = values((draw.tokens, (heads + 2 * kv_heads) * dim), draw, dtype)
        positions = positions_of(draw, 300, 1).T.contiguous()
        num_blocks = -(-max(draw.tokens, 1) // size) + 4
        slots = torch.randperm((num_blocks - 1) * size, generator=generator(draw.seed))[: draw.tokens].int() + size
        parts = qkv.unflatten(-1, (-1, dim)).split([heads, kv_heads, kv_heads], dim=1)
        q, k = (_turned(part, spec, weight, positions, table) for part, weight in zip(parts, weights, strict=False))
        with subject.device.inference_context():
            (cache,) = backend.allocate(num_blocks, size, 1)
            every = list(range(1, num_blocks))
            poison_blocks(subject, backend, cache, every, size)
            buffers = Buffers(subject)
            given = buffers.put("qkv", qkv, draw.layout)
            at, where = buffers.put("positions", positions), buffers.put("slots", slots)
            found = subject.to_host(kernel.run(given, at, held, norms[0], norms[1], cache, where))
            stored = read_blocks(subject, backend, cache, every)
            buffers.check()
        healthy = torch.ones(draw.tokens, 1, 1, dtype=torch.bool)
        if draw.poisoned_row is not None:
            healthy[draw.poisoned_row] = False
        assert_close(found, q, spec.dtype, what=f"q of {kernel.name}", valid=healthy)
        flat = stored.transpose(1, 2).flatten(0, 1)  # [slots, 2, kv heads, dim]
        mine = slots.long() - size
        kv, canonical = attention.kv_dtype, backend.layout.canonical_dtype
        for place, (want, name) in enumerate(((k, "keys"), (Bounded.exact(parts[2]), "values"))):
            within, what = kept_within(want, kv, spec.dtype), f"stored {name} of {kernel.name}"
            assert_close(flat[mine, place], within, canonical, what=what, valid=healthy)
        if kv is DType.FLOAT8_E4M3:  # of which each has one right code, and the bound above allows its neighbours
            assert_equal(codes(flat[mine, 1]), held_of(parts[2]), what=f"codes of values stored by {kernel.name}")
        others = torch.ones(len(flat), dtype=torch.bool)
        others[mine] = False
        if not bool(flat[others].isnan().all()):
            raise ConformanceError(f"{kernel.name} wrote to slots that are no token's")

    explore(profile, edge_draws(profile, PLAIN_FILLS), row_draws(profile, PLAIN_FILLS), run)


def _turned(x: Tensor, spec: QKNormRopeKVWriteSpec, weight: Tensor, positions: Tensor, table: Tensor | None) -> Bounded:
    found = Bounded.exact(x)
    if spec.q_norm is not None:
        norm = spec.q_norm
        found = layers.rms_norm(found, weight.double(), norm.eps, norm.weight_offset, spec.dtype)
    if table is not None and spec.rope is not None:
        found = layers.rope(found, positions, table, spec.rope, spec.dtype)
    return found


def _writes(subject: Subject, profile: Profile) -> list[Case]:
    cases = []
    for case in specs.kv_writes(specs.claimed(subject.capabilities), "any"):
        spec = case.value
        attention = AttentionSpec(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=0.25,
            dtype=spec.dtype,
            kv_dtype=spec.dtype,
        )
        if spec.dtype in subject.capabilities.kv_dtypes:
            cases.append(Case(id=case.id, value=(spec, attention)))
        for kv in ONE_BYTE:
            if kv in subject.capabilities.kv_dtypes and case.id.endswith("-normed"):
                cases.append(Case(id=f"{case.id}-{kv}", value=(spec, replace(attention, kv_dtype=kv))))
    return cases


CHECKS = (
    Check(
        level="L2",
        name="prepare_inputs",
        what="token ids and KV slots of a step",
        cases=lambda subject, profile: [
            Case(id="one-group", value=PrepareInputsSpec(block_sizes=(16,))),
            Case(id="groups", value=PrepareInputsSpec(block_sizes=(8, 24))),
        ],
        run=prepare_inputs,
    ),
    Check(
        level="L2",
        name="row_writes",
        what="block-table entries and parameters of rows",
        cases=lambda subject, profile: [Case(id=f"{n}", value=RowWritesSpec(num_groups=n)) for n in (1, 2)],
        run=row_writes,
    ),
    Check(
        level="L2",
        name="qk_norm_rope_kv_write",
        what="split, norm, rotate and store",
        cases=_writes,
        run=qk_norm_rope_kv_write,
    ),
)
