"""Sampling batches: rows with parameters of every kind, their counts, edits and masks, as the engine gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tenon_platforms.batch import FLOAT_COLUMNS, NUM_ROW_COLUMNS, RowColumn, SamplingBatch
from tenon_platforms.noise import sequence_key
from tenon_platforms.shapes import SamplingMode

from ..subject import Subject

NEGATIVE_INFINITY = float("-inf")


@lru_cache
def _key_of(seed: int) -> tuple[int, int]:
    return sequence_key(seed, 0)


@dataclass(slots=True, kw_only=True)
class SamplingRow:
    """One row. prompt, output: token ids counted for penalties, None: not counted. bias: always added; early: added
    at positions before `until`. allowed: None: no grammar."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0
    position: int = 1
    prompt: list[int] | None = None
    output: list[int] = field(default_factory=list)
    bias: dict[int, float] = field(default_factory=dict)
    early: dict[int, float] = field(default_factory=dict)
    until: int = 0
    allowed: list[int] | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Its noise key."""
        return _key_of(self.seed)


@dataclass(slots=True, kw_only=True)
class SamplingDraw:
    """Rows, their logits on the host, and the mode of the batch."""

    rows: list[SamplingRow]
    logits: Tensor
    mode: SamplingMode
    exact: bool = False  # logits are small integers and temperatures 1: no rounding decides anything
    poisoned: int = -1


def make_batch(subject: Subject, draw: SamplingDraw) -> SamplingBatch:
    """The batch on the device. Count and edit slot i + 1 is row i's; slot 0 belongs to nobody."""
    count, vocab = draw.logits.shape
    params = np.zeros((count, NUM_ROW_COLUMNS), dtype=np.int32)
    counts = np.zeros((count + 1, 2, vocab), dtype=np.int32)
    edits = np.zeros((count + 1, 2, vocab), dtype=np.float32)
    mask = np.full((count, -(-vocab // 32)), -1, dtype=np.int32)
    for place, row in enumerate(draw.rows):
        key = np.array(row.key, dtype=np.uint32).view(np.int32)
        values = {
            RowColumn.TEMPERATURE: row.temperature,
            RowColumn.TOP_P: row.top_p,
            RowColumn.MIN_P: row.min_p,
            RowColumn.REPETITION: row.repetition,
            RowColumn.PRESENCE: row.presence,
            RowColumn.FREQUENCY: row.frequency,
            RowColumn.TOP_K: row.top_k,
            RowColumn.NOISE_KEY0: key[0],
            RowColumn.NOISE_KEY1: key[1],
            RowColumn.COUNT_SLOT: 0 if row.prompt is None else place + 1,
            RowColumn.EDIT_SLOT: place + 1 if row.bias or row.early else 0,
            RowColumn.EDIT_UNTIL: row.until,
        }
        for column, value in values.items():
            params[place, column] = np.float32(value).view(np.int32) if column in FLOAT_COLUMNS else value
        if row.prompt is not None:
            counts[place + 1, 0, row.prompt] = 1
            np.add.at(counts[place + 1, 1], row.output, 1)
        for line, given in enumerate((row.bias, row.early)):
            for token, value in given.items():
                edits[place + 1, line, token] = value
        if row.allowed is not None:
            bits = np.zeros(mask.shape[1] * 32, dtype=np.uint8)
            bits[row.allowed] = 1
            mask[place] = np.packbits(bits, bitorder="little").view(np.int32)
    positions = np.array([row.position for row in draw.rows], dtype=np.int32)
    return SamplingBatch(
        mode=draw.mode,
        positions=subject.to_device(torch.from_numpy(positions)),
        params=subject.to_device(torch.from_numpy(params)),
        counts=subject.to_device(torch.from_numpy(counts)),
        edits=subject.to_device(torch.from_numpy(edits)),
        grammar_mask=subject.to_device(torch.from_numpy(mask)) if draw.mode.grammar else None,
    )


def draw_batch(kind: str, count: int, vocab: int, seed: int, dtype: torch.dtype = torch.float32) -> SamplingDraw:
    """A batch of one kind of `levels/l2/sampling.py`: greedy, ties, noise, filters, penalties, edits, grammar, ..."""
    random = np.random.default_rng(seed)
    ties = "ties" in kind
    drawn = random.integers(-3, 4, (count, vocab)) if ties else random.standard_normal((count, vocab)) * 3
    logits = torch.from_numpy(np.asarray(drawn, dtype=np.float32)).to(dtype)
    everything = kind in ("everything", "nan row")
    noise = everything or kind in ("noise", "filters", "filter ties")
    mode = SamplingMode(
        noise=noise,
        filters=everything or kind.startswith("filter"),
        penalties=everything or kind == "penalties",
        edits=everything or kind == "edits",
        grammar=everything or kind == "grammar",
    )
    rows = [_row(random, mode, vocab, ties) for _ in range(count)]
    for place, row in enumerate(rows):
        best = int(logits[place].argmax())
        if kind == "greedy":  # a rival that only full precision tells apart, before or behind the best
            logits[place, (best + vocab // 2) % vocab] = logits[place, best] - 1e-5 * logits[place, best].abs()
        if row.early:  # the ban matters, and its last position is tried
            row.early[best] = NEGATIVE_INFINITY
            row.until = row.position + place % 3 - 1
    poisoned = count // 2 if kind == "nan row" and count > 1 else -1
    if poisoned >= 0:
        logits[poisoned] = float("nan")
    return SamplingDraw(rows=rows, logits=logits, mode=mode, exact=ties, poisoned=poisoned)


def _row(random: np.random.Generator, mode: SamplingMode, vocab: int, ties: bool) -> SamplingRow:
    row = SamplingRow(seed=int(random.integers(0, 2**63)), position=int(random.integers(1, 5000)))
    if mode.noise and random.random() < 0.85:
        row.temperature = 1.0 if ties else float(random.choice([0.3, 0.7, 1.0, 1.5]))
    if mode.filters and row.temperature:
        row.top_k = int(random.choice([0, 1, 2, 5, vocab // 2, vocab, 10 * vocab]))
        row.top_p = float(random.choice([1.0, 1e-6] if ties else [1.0, 0.9, 0.5, 0.1, 1e-6]))
        row.min_p = 0.0 if ties else float(random.choice([0.0, 0.0, 0.05, 0.5]))
    if mode.penalties and random.random() < 0.8:
        row.prompt = random.integers(0, vocab, 9).tolist()
        row.output = random.integers(0, vocab, 12).tolist()
        row.repetition = float(random.choice([1.0, 1.3, 0.8]))
        row.presence, row.frequency = (float(random.choice([0.0, 0.7, -0.4])) for _ in range(2))
    if mode.edits and random.random() < 0.8:
        row.bias = {
            int(t): float(v) for t, v in zip(random.integers(0, vocab, 4), (3.5, -100.0, 6.0, -2.0), strict=True)
        }
        row.early = dict.fromkeys(random.integers(0, vocab, 3).tolist(), NEGATIVE_INFINITY)
    if mode.grammar and random.random() < 0.8:
        row.allowed = sorted({0, vocab - 1, *random.integers(0, vocab, max(vocab // 3, 1)).tolist()})
    return row
