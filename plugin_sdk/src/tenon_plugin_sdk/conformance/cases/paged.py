"""Paged worlds: sequences whose keys and values lie scattered over blocks, and batches of their last tokens.

    block 0    the null block, zero
    shared     full blocks that several rows' tables begin with (a cached prefix)
    own        blocks of one row, in a permuted order
    unused     filled with NaN, before, between and after the others

A batch is decodes first, then prefills; rows of the table are in no order; padding is the dummy row on the null block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tenon_platforms.batch import AttentionBatch, HostBatch
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.shapes import ShapeKey

from ..profile import Profile
from ..subject import Subject
from .kept import draw_kept, kept

SPARE_BLOCKS = 5
SPARE_ROWS = 3


@dataclass(frozen=True, slots=True)
class PagedDraw:
    """One step. rows: (tokens before, tokens now) of each row, decodes (one token now) first.

    shared: tokens of common prefix, whole blocks of it are shared. padding: rows (of a decode) or tokens added.
    poisoned: index of a row whose query, keys and values are NaN, -1: none.
    """

    rows: tuple[tuple[int, int], ...]
    shared: int = 0
    padding: int = 0
    poisoned: int = -1
    large: bool = False
    seed: int = 0


def edge_steps(profile: Profile, block: int) -> list[PagedDraw]:
    """One token, a block's edges, prompts, chunks, mixed steps, shared prefixes, padding, a poisoned row."""
    b = block
    steps = [
        PagedDraw(((0, 1),)),
        PagedDraw(((b - 1, 1), (b, 1), (b + 1, 1), (2 * b - 1, 1), (0, 1), (3 * b, 1)), seed=1),
        PagedDraw(((0, b - 1), (0, b), (0, b + 1)), seed=2),
        PagedDraw(((5, 1), (2 * b + 3, 1), (0, 7), (b + 2, 9)), seed=3),
        PagedDraw(((3 * b + 1, 1), (2 * b + 5, 1), (2 * b, 6)), shared=2 * b, seed=4),
        PagedDraw(((b + 4, 1), (13, 1), (1, 1)), padding=5, seed=5),
        PagedDraw(((b + 4, 1), (7, 1), (0, 11), (3, 4)), poisoned=1, seed=6),
        PagedDraw(((2 * b + 1, 1), (0, b + 3)), poisoned=0, padding=3, seed=7),
        PagedDraw(((b, 1), (37, 1)), large=True, seed=8),
    ]
    if profile.wide:
        steps += [
            PagedDraw(tuple((n, 1) for n in (1021, 3, 509, 64, 0, 127)), seed=9),
            PagedDraw(((1000, 1), (0, 513), (257, 31)), seed=10),
            PagedDraw(tuple((n, 1) for n in range(0, 200, 3)), padding=13, seed=11),
        ]
    return [replace(step, seed=profile.salted(step.seed)) for step in steps]


def drawn_steps(profile: Profile, block: int) -> st.SearchStrategy[PagedDraw]:
    """Any step."""
    longest = 8 * block if profile.wide else 3 * block
    decodes = st.lists(st.tuples(st.integers(0, longest), st.just(1)), max_size=6)
    prefills = st.lists(st.tuples(st.integers(0, longest), st.integers(2, 2 * block)), max_size=2)
    rows = st.tuples(decodes, prefills).map(lambda both: tuple(both[0] + both[1])).filter(len)
    return st.builds(
        PagedDraw,
        rows,
        st.sampled_from((0, 0, block, 2 * block)),
        st.sampled_from((0, 0, 1, 5)),
        st.integers(-3, 3),
        st.booleans(),
        st.integers(0, 2**31 - 1),
    )


@dataclass(slots=True, kw_only=True)
class PagedWorld:
    """The sequences of one draw. keys, values: host [length, kv heads, head_dim] a row, as the cache's type holds them.

    table: int32 [all rows + 1, blocks]; ids: the rows' places in it. blocks: those that hold something.
    """

    spec: AttentionSpec
    draw: PagedDraw
    block_size: int
    keys: list[Tensor]
    values: list[Tensor]
    table: Tensor
    ids: list[int]
    num_blocks: int
    blocks: list[list[int]]
    lengths: list[int] = field(default_factory=list)

    @property
    def query_lens(self) -> list[int]:
        """Tokens of each row in this step."""
        return [now for _, now in self.draw.rows]

    def slots(self, row: int, start: int, end: int) -> Tensor:
        """Where tokens [start, end) of a row lie."""
        place = torch.arange(start, end)
        blocks = torch.tensor(self.blocks[row])[place // self.block_size]
        return (blocks * self.block_size + place % self.block_size).int()

    def visible_from(self, row: int) -> int:
        """The first token that any query of this step sees; what lies before may be gone."""
        window, (before, _) = self.spec.sliding_window, self.draw.rows[row]
        return max(before + 1 - window, 0) if window else 0


def make_world(spec: AttentionSpec, draw: PagedDraw, block_size: int) -> PagedWorld:
    """Draw the sequences and scatter their blocks."""
    random = np.random.default_rng(draw.seed)
    lengths = [before + now for before, now in draw.rows]
    torch_random = torch.Generator().manual_seed(draw.seed)

    def drawn(length: int) -> Tensor:
        shape = (length, spec.num_kv_heads, spec.head_dim)
        made = draw_kept(torch_random, shape, spec.dtype, spec.kv_dtype, 30.0 if draw.large else 1.0)
        return kept(made, spec.kv_dtype)

    keys, values = [drawn(n) for n in lengths], [drawn(n) for n in lengths]
    counts = [-(-n // block_size) for n in lengths]
    num_shared = draw.shared // block_size
    shared_rows = (
        [row for row, count in enumerate(counts) if lengths[row] >= num_shared * block_size and count]
        if num_shared
        else []
    )
    if draw.poisoned in shared_rows:
        shared_rows.remove(draw.poisoned)
    for row in shared_rows[1:]:
        for part in (keys, values):
            part[row][: num_shared * block_size] = part[shared_rows[0]][: num_shared * block_size]
    num_blocks = 1 + sum(counts) + SPARE_BLOCKS
    order = random.permutation(np.arange(1, num_blocks)).tolist()
    prefix = [order.pop() for _ in range(num_shared)] if shared_rows else []
    blocks = []
    for row, count in enumerate(counts):
        mine = list(prefix) if row in shared_rows else []
        blocks.append(mine + [order.pop() for _ in range(count - len(mine))])
    num_rows = len(lengths) + SPARE_ROWS
    ids = random.permutation(num_rows)[: len(lengths)].tolist()
    table = torch.full((num_rows + 1, max(counts) + 2), num_blocks - 1, dtype=torch.int32)
    table[:, :] = order[0] if order else 0  # rows that are not in the step point at poison
    table[num_rows] = 0
    world = PagedWorld(
        spec=spec,
        draw=draw,
        block_size=block_size,
        keys=keys,
        values=values,
        table=table,
        ids=ids,
        num_blocks=num_blocks,
        blocks=blocks,
        lengths=lengths,
    )
    for row, mine in enumerate(blocks):
        gone = world.visible_from(row) // block_size
        table[ids[row]] = 0
        table[ids[row], gone : len(mine)] = torch.tensor(mine[gone:], dtype=torch.int32)
    if 0 <= draw.poisoned < len(lengths):
        keys[draw.poisoned].fill_(float("nan"))
        values[draw.poisoned].fill_(float("nan" if spec.kv_dtype is DType.FLOAT8_E4M3 else "inf"))  # it has no inf
    return world


def make_batch(subject: Subject, world: PagedWorld) -> AttentionBatch:
    """The step's batch on the device, padded as the draw says."""
    queries, lengths, padding = world.query_lens, world.lengths, world.draw.padding
    rows, tokens = len(queries), sum(queries)
    decode = max(queries) == 1
    all_rows, all_tokens = (rows + padding, tokens + padding) if decode else (rows, tokens + padding)
    starts = np.zeros(all_rows + 1, dtype=np.int32)
    starts[1 : rows + 1] = np.cumsum(queries)
    starts[rows + 1 :] = np.arange(rows + 1, all_rows + 1) if decode else tokens
    token_rows = np.full(all_tokens, all_rows - 1, dtype=np.int32)
    token_rows[:tokens] = np.repeat(np.arange(rows), queries)
    if decode:
        token_rows[tokens:] = np.arange(rows, all_rows)
    positions = np.zeros((1, all_tokens), dtype=np.int32)
    positions[0, :tokens] = np.concatenate([np.arange(n - q, n) for n, q in zip(lengths, queries, strict=True)])
    ids = np.full(all_rows, world.table.shape[0] - 1, dtype=np.int32)
    ids[:rows] = world.ids
    seq_lens = np.ones(all_rows, dtype=np.int32)
    seq_lens[:rows] = lengths
    host = HostBatch(
        num_tokens=tokens,
        num_rows=rows,
        num_logits=rows,
        num_decodes=sum(q == 1 for q in _leading_ones(queries)),
        query_lens=np.array(queries, dtype=np.int32),
        seq_lens=np.array(lengths, dtype=np.int32),
        max_query=max(queries),
        max_seq=max(lengths),
    )
    key = ShapeKey(
        tokens=all_tokens, rows=all_rows, logits=rows, max_query=max(queries), blocks=world.table.shape[1],
        static=bool(padding),
    )  # fmt: skip

    def device(array: np.ndarray) -> Tensor:
        return subject.to_device(torch.from_numpy(np.ascontiguousarray(array)))

    return AttentionBatch(
        block_table=subject.to_device(world.table),
        block_size=world.block_size,
        rows=device(ids),
        query_starts=device(starts),
        seq_lens=device(seq_lens),
        token_rows=device(token_rows),
        positions=device(positions),
        num_valid=device(np.array([tokens, rows, rows], dtype=np.int32)),
        key=key,
        host=host,
    )


def _leading_ones(queries: Sequence[int]) -> list[int]:
    leading = []
    for count in queries:
        if count != 1:
            break
        leading.append(count)
    return leading
