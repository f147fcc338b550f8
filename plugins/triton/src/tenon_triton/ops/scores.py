"""What a token's logit becomes before it is chosen, as a device function: edits, grammar mask, penalties, temperature.

In the order and arithmetic of the reference sampler. Computed again wherever it is needed: one more read of half-width
logits costs less than writing and reading full-width ones.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tenon_platforms.batch import NUM_ROW_COLUMNS, RowColumn, SamplingBatch

TEMPERATURE: tl.constexpr = tl.constexpr(int(RowColumn.TEMPERATURE))
REPETITION: tl.constexpr = tl.constexpr(int(RowColumn.REPETITION))
PRESENCE: tl.constexpr = tl.constexpr(int(RowColumn.PRESENCE))
FREQUENCY: tl.constexpr = tl.constexpr(int(RowColumn.FREQUENCY))
COUNT_SLOT: tl.constexpr = tl.constexpr(int(RowColumn.COUNT_SLOT))
EDIT_SLOT: tl.constexpr = tl.constexpr(int(RowColumn.EDIT_SLOT))
EDIT_UNTIL: tl.constexpr = tl.constexpr(int(RowColumn.EDIT_UNTIL))
COLUMNS: tl.constexpr = tl.constexpr(NUM_ROW_COLUMNS)


@triton.jit
def number(row_params, row, COLUMN: tl.constexpr):
    """A row's float32 parameter."""
    return tl.load(row_params + row * COLUMNS + COLUMN).to(tl.float32, bitcast=True)


@triton.jit
def whole(row_params, row, COLUMN: tl.constexpr):
    """A row's int32 parameter."""
    return tl.load(row_params + row * COLUMNS + COLUMN)


@triton.jit
def edited(
    logits,
    row_params,
    positions,
    edits,
    counts,
    mask,
    row,
    ids,
    inside,
    vocab,
    row_stride,
    mask_stride,
    EDITS: tl.constexpr,
    GRAMMAR: tl.constexpr,
    PENALTIES: tl.constexpr,
):
    """float32 logits of some ids of a row, after edits, grammar and penalties; ids outside: -inf. row: int64."""
    found = tl.load(logits + row * row_stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    if EDITS:
        slot = whole(row_params, row, EDIT_SLOT).to(tl.int64)
        known = inside & (slot > 0)
        line = edits + slot * 2 * vocab
        found += tl.load(line + ids, mask=known, other=0.0)
        early = tl.load(positions + row) < whole(row_params, row, EDIT_UNTIL)
        found += tl.load(line + vocab + ids, mask=known & early, other=0.0)
    if GRAMMAR:
        word = tl.load(mask + row * mask_stride + ids // 32, mask=inside, other=0)
        found = tl.where(((word >> (ids % 32)) & 1) != 0, found, float("-inf"))
    if PENALTIES:
        slot = whole(row_params, row, COUNT_SLOT).to(tl.int64)
        counted = inside & (slot > 0)
        line = counts + slot * 2 * vocab
        prompt = tl.load(line + ids, mask=counted, other=0)
        output = tl.load(line + vocab + ids, mask=counted, other=0)
        repetition = number(row_params, row, REPETITION)
        repeated = tl.where(found > 0, tl.div_rn(found, repetition + tl.zeros_like(found)), found * repetition)
        found = tl.where((prompt > 0) | (output > 0), repeated, found)
        found -= number(row_params, row, FREQUENCY) * output.to(tl.float32)
        found -= number(row_params, row, PRESENCE) * tl.where(output > 0, 1.0, 0.0)
    found = tl.where(found != found, float("inf"), found)  # NaN wins, as in torch's argmax
    return tl.where(inside, found, float("-inf"))


@triton.jit
def heat(row_params, row):
    """What a row's logits are divided by: its temperature, or 1 where it is greedy."""
    temperature = number(row_params, row, TEMPERATURE)
    return tl.where(temperature > 0, temperature, 1.0)


def arguments(logits: Any, batch: SamplingBatch) -> dict[str, Any]:
    """The keyword arguments of `edited` that kernels pass on."""
    mode = batch.mode
    grammar = mode.grammar and batch.grammar_mask is not None
    return {
        "logits": logits,
        "row_params": batch.params,
        "positions": batch.positions,
        "edits": batch.edits,
        "counts": batch.counts,
        "mask": batch.grammar_mask if grammar else None,
        "vocab": logits.shape[1],
        "row_stride": logits.stride(0),
        "mask_stride": batch.grammar_mask.stride(0) if grammar and batch.grammar_mask is not None else 0,
        "EDITS": mode.edits,
        "GRAMMAR": grammar,
        "PENALTIES": mode.penalties,
    }
