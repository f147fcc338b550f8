"""Inputs of mini steps: random rows, lengths and tables, padded to a key, into tensors that stay the same objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenon_platforms.batch import AttentionBatch, HostBatch, StepInputs
from tenon_platforms.shapes import ShapeKey

from ..subject import Subject
from .mini_step import MAX_ROWS, VOCAB, MiniStep, StepCall

Arrays = dict[str, "np.ndarray[Any, np.dtype[np.int32]]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDraw:
    """One step: each row's id, tokens before, tokens now; its new table; the tokens given."""

    rows: list[int]
    before: list[int]
    now: list[int]
    tables: np.ndarray[Any, np.dtype[np.int32]]
    tokens: np.ndarray[Any, np.dtype[np.int32]]


def draw_step(key: ShapeKey, max_blocks: int, block_size: int, random: np.random.Generator) -> StepDraw:
    """A step that fits a key; as often as not, it leaves padding."""
    blocks = min(key.blocks or max_blocks, max_blocks)
    most = blocks * block_size
    if key.is_decode:
        count = int(random.integers(1, min(key.rows, MAX_ROWS) + 1))
        now = [1] * count
    else:
        count = int(random.integers(1, min(key.rows, MAX_ROWS, key.tokens // 2) + 1))
        share = min(key.tokens // count, most - 1)
        now = [int(random.integers(2, share + 1)) if share > 2 else share for _ in range(count)]
    before = [int(random.integers(0, most - n)) for n in now]
    pool = random.permutation(np.arange(1, MAX_ROWS * max_blocks + 1)).astype(np.int32)
    tables = np.zeros((MAX_ROWS + 1, max_blocks), dtype=np.int32)
    tables[:MAX_ROWS] = pool.reshape(MAX_ROWS, max_blocks)
    rows = random.permutation(MAX_ROWS)[:count].tolist()
    tokens = random.integers(0, VOCAB, sum(now)).astype(np.int32)
    return StepDraw(rows=rows, before=before, now=now, tables=tables, tokens=tokens)


def arrays_of(draw: StepDraw, key: ShapeKey) -> tuple[Arrays, HostBatch]:
    """The index arrays of a step, padded as the engine pads them."""
    count, tokens = len(draw.rows), sum(draw.now)
    starts = np.concatenate(([0], np.cumsum(draw.now))).astype(np.int32)
    decode = key.is_decode
    owner = np.repeat(np.arange(count), draw.now)
    made = {
        "token_ids": np.zeros(key.tokens),
        "positions": np.zeros(key.tokens),
        "token_rows": np.full(key.tokens, key.rows - 1),
        "rows": np.full(key.rows, MAX_ROWS),
        "query_starts": np.full(key.rows + 1, tokens),
        "seq_lens": np.ones(key.rows),
        "logit_index": np.zeros(key.logits),
        "logit_rows": np.full(key.logits, MAX_ROWS),
        "targets": np.full(key.logits, -1),
        "num_valid": np.array([tokens, count, min(count, key.logits)]),
        "write_places": np.zeros(key.rows),
        "write_blocks": np.zeros(key.rows),
    }
    made["token_ids"][:tokens] = -1 if decode else draw.tokens
    made["positions"][:tokens] = np.arange(tokens) - starts[owner] + np.array(draw.before)[owner]
    made["token_rows"][:tokens] = owner
    made["rows"][:count] = draw.rows
    made["query_starts"][: count + 1] = starts
    if decode:
        made["query_starts"][count + 1 :] = np.arange(count + 1, key.rows + 1)
        made["token_rows"][tokens:] = np.arange(count, key.rows)
    lengths = np.array(draw.before) + np.array(draw.now)
    made["seq_lens"][:count] = lengths
    sampled = min(count, key.logits)
    made["logit_index"][:sampled] = starts[1 : sampled + 1] - 1
    made["logit_rows"][:sampled] = draw.rows[:sampled]
    host = HostBatch(
        num_tokens=tokens,
        num_rows=count,
        num_logits=sampled,
        num_decodes=count if decode else 0,
        query_lens=np.array(draw.now, dtype=np.int32),
        seq_lens=lengths.astype(np.int32),
        max_query=max(draw.now),
        max_seq=int(lengths.max()),
    )
    return {name: array.astype(np.int32) for name, array in made.items()}, host


@dataclass(slots=True, kw_only=True)
class KeyedInputs:
    """One key's device tensors, made once and written before every step; and the plan that is updated."""

    subject: Subject
    step: MiniStep
    key: ShapeKey
    held: dict[str, Tensor] = field(default_factory=dict)
    plan: Any = None

    def call(self, draw: StepDraw) -> StepCall:
        """Write the step's indices and tables, plan it, and give what an executable takes."""
        subject, step = self.subject, self.step
        arrays, host = arrays_of(draw, self.key)
        for name, array in arrays.items():
            value = torch.from_numpy(array)
            if name not in self.held:
                self.held[name] = subject.device.empty(tuple(value.shape), value.dtype)
            subject.fill(self.held[name], value)
        subject.fill(step.state.block_tables, torch.from_numpy(draw.tables)[None])
        parts = dict(self.held)
        parts["positions"] = self.held["positions"][None]
        inputs = StepInputs(key=self.key, host=host, **parts)
        batch = AttentionBatch(
            block_table=step.state.block_tables[0],
            block_size=step.model.block_size,
            rows=inputs.rows,
            query_starts=inputs.query_starts,
            seq_lens=inputs.seq_lens,
            token_rows=inputs.token_rows,
            positions=inputs.positions,
            num_valid=inputs.num_valid,
            key=self.key,
            host=host,
        )
        backend = step.model.backend
        if self.plan is None or not self.key.static:
            self.plan = backend.plan(batch)
        else:
            self.plan = backend.update(self.plan, batch)
        return StepCall(inputs=inputs, plans=[self.plan])
