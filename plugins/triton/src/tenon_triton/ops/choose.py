"""The best token of every row: greedy, or with Gumbel noise (which draws from the softmax), after the row's cut.

A row is split among programs where rows are few; ties go to the lowest id however it is split. Noise is made only for
tiles that could still win were theirs the largest there is: for a peaked distribution hardly any.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.batch import RowColumn, SamplingBatch

from .. import early
from ..early import trigger, wait
from .noise import LARGEST_NOISE, gumbel, threefry
from .scores import COUNT_SLOT, TEMPERATURE, arguments, edited, heat, number, whole

PAIRS = 1024  # neighbouring ids of a tile
PROGRAMS = 512  # wanted in flight
NO_ID: tl.constexpr = tl.constexpr(2**31 - 1)
KEY0: tl.constexpr = tl.constexpr(int(RowColumn.NOISE_KEY0))
KEY1: tl.constexpr = tl.constexpr(int(RowColumn.NOISE_KEY1))


@triton.jit
def _take(best, best_id, even, odd, ids):
    """The better of what is held and a tile's pairs; of equal ones what came first."""
    value = tl.maximum(even, odd)
    which = tl.where(odd > even, ids + 1, ids)
    better = value > best
    return tl.where(better, value, best), tl.where(better, which, best_id)


@triton.jit
def _finish(tokens, counts, row_params, row, token, vocab, COUNT: tl.constexpr):
    token = tl.minimum(token, vocab - 1)
    tl.store(tokens + row, token)
    if COUNT:
        slot = whole(row_params, row, COUNT_SLOT).to(tl.int64)
        tl.atomic_add(counts + (slot * 2 + 1) * vocab + token, 1)


@triton.jit
def _best(
    logits,
    row_params,
    positions,
    edits,
    counts,
    mask,
    cut,
    cut_id,
    values,
    ids_out,
    tokens,
    vocab,
    row_stride,
    mask_stride,
    share,
    ALONE: tl.constexpr,
    EDITS: tl.constexpr,
    GRAMMAR: tl.constexpr,
    PENALTIES: tl.constexpr,
    NOISE: tl.constexpr,
    FILTERS: tl.constexpr,
    PAIRS: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    wait(EARLY)
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = tl.multiple_of(split * share, 2 * PAIRS)  # whole tiles: wide loads
    end = tl.minimum(begin + share, vocab)
    pair = tl.arange(0, PAIRS)
    place = tl.arange(0, 2 * PAIRS)
    best = tl.full([PAIRS], float("-inf"), tl.float32)
    best_id = tl.zeros([PAIRS], tl.int32) + begin
    bar = float("-inf")
    if NOISE:
        divisor = heat(row_params, row)
        draws = number(row_params, row, TEMPERATURE) > 0
        key0 = whole(row_params, row, KEY0).to(tl.uint32, bitcast=True)
        key1 = whole(row_params, row, KEY1).to(tl.uint32, bitcast=True)
        position = tl.load(positions + row).to(tl.int32).to(tl.uint32, bitcast=True)
    if FILTERS:
        least, last = tl.load(cut + row), tl.load(cut_id + row)
    for start in range(begin, end, 2 * PAIRS):
        first = start + 2 * pair
        ids = start + place
        found = edited(
            logits,
            row_params,
            positions,
            edits,
            counts,
            mask,
            row,
            ids,
            ids < end,
            vocab,
            row_stride,
            mask_stride,
            EDITS,
            GRAMMAR,
            PENALTIES,
        )
        if NOISE:
            found = tl.div_rn(found, divisor + tl.zeros_like(found))
        if FILTERS:
            found = tl.where((found > least) | ((found == least) & (ids <= last)), found, float("-inf"))
        even, odd = tl.split(tl.reshape(found, [PAIRS, 2]))
        if NOISE:
            if draws:
                most = tl.max(tl.maximum(even, odd), axis=0)
                if most + LARGEST_NOISE > bar:
                    counter = (first // 2).to(tl.uint32)
                    bits0, bits1 = threefry(key0, key1, counter, tl.zeros_like(counter) + position)
                    best, best_id = _take(best, best_id, even + gumbel(bits0), odd + gumbel(bits1), first)
                    bar = tl.max(best, axis=0)
            else:
                best, best_id = _take(best, best_id, even, odd, first)
        else:
            best, best_id = _take(best, best_id, even, odd, first)
    winner = tl.max(best, axis=0)
    token = tl.min(tl.where(best == winner, best_id, NO_ID), axis=0)
    if ALONE:
        _finish(tokens, counts, row_params, row, token, vocab, PENALTIES)
    else:
        place = row * tl.num_programs(1) + split
        tl.store(values + place, winner)
        tl.store(ids_out + place, token)


@triton.jit(do_not_specialize=["splits"])
def _best_split(
    values,
    ids,
    tokens,
    counts,
    row_params,
    vocab,
    splits,
    WIDTH: tl.constexpr,
    COUNT: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, WIDTH)
    inside = split < splits
    held = tl.load(values + row * splits + split, mask=inside, other=float("-inf"))
    which = tl.load(ids + row * splits + split, mask=inside, other=NO_ID)
    token = tl.min(tl.where(held == tl.max(held, axis=0), which, NO_ID), axis=0)
    _finish(tokens, counts, row_params, row, token, vocab, COUNT)


def split_of(rows: int, vocab: int) -> tuple[int, int]:
    """(programs a row, ids of each): enough programs to fill a device, whole tiles each. By the shape alone."""
    tiles = triton.cdiv(vocab, 2 * PAIRS)
    each = triton.cdiv(tiles, max(1, min(tiles, triton.cdiv(PROGRAMS, rows))))
    return triton.cdiv(tiles, each), each * 2 * PAIRS


def choose(logits: Tensor, batch: SamplingBatch, cut: tuple[Tensor, Tensor] | None) -> Tensor:
    """int32 [rows]: the chosen ids; counts are raised where the mode has penalties.

    cut: float32 [rows] and int32 [rows]: of scaled logits only those above the first are candidates, and of equal ones
    ids up to the second.
    """
    rows, vocab = logits.shape
    device: Any = logits.device
    tokens = torch.empty((rows,), dtype=torch.int32, device=device)
    if not rows:
        return tokens
    splits, share = split_of(rows, vocab)
    values = ids = None
    if splits > 1:
        values = torch.empty((rows, splits), dtype=torch.float32, device=device)
        ids = torch.empty((rows, splits), dtype=torch.int32, device=device)
    _best[(rows, splits)](
        **arguments(logits, batch),
        cut=None if cut is None else cut[0],
        cut_id=None if cut is None else cut[1],
        values=values,
        ids_out=ids,
        tokens=tokens,
        share=share,
        ALONE=splits == 1,
        NOISE=batch.mode.noise,
        FILTERS=cut is not None,
        PAIRS=PAIRS,
        num_warps=4,
        **early.options(),
    )
    if splits > 1:
        _best_split[(rows,)](
            values,
            ids,
            tokens,
            batch.counts,
            batch.params,
            vocab,
            splits,
            WIDTH=triton.next_power_of_2(triton.cdiv(vocab, 2 * PAIRS)),
            COUNT=batch.mode.penalties,
            num_warps=1,
            **early.options(),
        )
    return tokens
