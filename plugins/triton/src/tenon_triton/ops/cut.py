"""Where min-p, top-k and top-p cut a row, without sorting it: a search for the least value that is kept.

What is kept is a prefix of the row in falling order, equal values by rising id, so a value and the last id of those
equal to it say it all. One program a row:

    1  the greatest value; min-p's floor follows from it
    2  counts and masses above four guesses and the floor: they bracket both searches
    3  for top-k, then for top-p: values inside the bracket are gathered, then the bracket is divided by five until one
       float is left (floats ordered as integers, so at most 14 times; few values are left, so each is quick)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.batch import RowColumn, SamplingBatch

from .scores import TEMPERATURE, arguments, edited, heat, number, whole

BLOCK = 4096
WARPS = 16
NO_ID: tl.constexpr = tl.constexpr(2**31 - 1)
TOP_K: tl.constexpr = tl.constexpr(int(RowColumn.TOP_K))
TOP_P: tl.constexpr = tl.constexpr(int(RowColumn.TOP_P))
MIN_P: tl.constexpr = tl.constexpr(int(RowColumn.MIN_P))


@triton.jit
def _key(x):
    """int32 in the order of float32 x; its own inverse on bits. Both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _scaled(
    logits,
    row_params,
    positions,
    edits,
    counts,
    mask,
    row,
    ids,
    n,
    vocab,
    row_stride,
    mask_stride,
    divisor,
    EDITS: tl.constexpr,
    GRAMMAR: tl.constexpr,
    PENALTIES: tl.constexpr,
):
    found = edited(
        logits,
        row_params,
        positions,
        edits,
        counts,
        mask,
        row,
        ids,
        ids < n,
        vocab,
        row_stride,
        mask_stride,
        EDITS,
        GRAMMAR,
        PENALTIES,
    )
    return tl.div_rn(found, divisor + tl.zeros_like(found))


@triton.jit
def _enough(count, mass, k, target, BY_MASS: tl.constexpr):
    if BY_MASS:
        found = mass >= target
    else:
        found = count >= k
    return found


@triton.jit
def _narrow(
    pivot, count, mass, low, high, low_count, low_mass, high_count, high_mass, k, target, BY_MASS: tl.constexpr
):
    """A bracket after one guess: low keeps enough, high does not."""
    enough = _enough(count, mass, k, target, BY_MASS)
    up = enough & (pivot > low)
    down = (enough == 0) & (pivot > low) & (pivot < high)
    low_count = tl.where(up, count, low_count)
    low_mass = tl.where(up, mass, low_mass)
    high_count = tl.where(down, count, high_count)
    high_mass = tl.where(down, mass, high_mass)
    return tl.where(up, pivot, low), tl.where(down, pivot, high), low_count, low_mass, high_count, high_mass


@triton.jit
def _search(
    line,
    held,
    greatest,
    low,
    high,
    low_count,
    low_mass,
    high_count,
    high_mass,
    k,
    target,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The greatest key that keeps enough, of `held` gathered values inside the bracket, and what lies above it."""
    lane = tl.arange(0, BLOCK)
    above, mass_above = high_count, high_mass
    while high - low > 1:
        width = high - low
        p1, p2 = low + tl.maximum(width // 5, 1), low + tl.maximum(width * 2 // 5, 1)
        p3, p4 = low + tl.maximum(width * 3 // 5, 1), low + tl.maximum(width * 4 // 5, 1)
        c1 = tl.zeros([BLOCK], tl.int32)
        c2, c3, c4 = c1, c1, c1
        m1 = tl.zeros([BLOCK], tl.float32)
        m2, m3, m4 = m1, m1, m1
        for start in range(0, held, BLOCK):
            inside = start + lane < held
            x = tl.load(line + start + lane, mask=inside, other=float("-inf"))
            key = _key(x).to(tl.int64)
            weight = tl.exp(x - greatest)
            c1 += (inside & (key >= p1)).to(tl.int32)
            c2 += (inside & (key >= p2)).to(tl.int32)
            c3 += (inside & (key >= p3)).to(tl.int32)
            c4 += (inside & (key >= p4)).to(tl.int32)
            if BY_MASS:
                m1 += tl.where(key >= p1, weight, 0.0)
                m2 += tl.where(key >= p2, weight, 0.0)
                m3 += tl.where(key >= p3, weight, 0.0)
                m4 += tl.where(key >= p4, weight, 0.0)
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            p1,
            above + tl.sum(c1),
            mass_above + tl.sum(m1),
            low,
            high,
            low_count,
            low_mass,
            high_count,
            high_mass,
            k,
            target,
            BY_MASS,
        )
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            p2,
            above + tl.sum(c2),
            mass_above + tl.sum(m2),
            low,
            high,
            low_count,
            low_mass,
            high_count,
            high_mass,
            k,
            target,
            BY_MASS,
        )
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            p3,
            above + tl.sum(c3),
            mass_above + tl.sum(m3),
            low,
            high,
            low_count,
            low_mass,
            high_count,
            high_mass,
            k,
            target,
            BY_MASS,
        )
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            p4,
            above + tl.sum(c4),
            mass_above + tl.sum(m4),
            low,
            high,
            low_count,
            low_mass,
            high_count,
            high_mass,
            k,
            target,
            BY_MASS,
        )
    return low, low_count, high_count, high_mass


@triton.jit
def _find_cut(
    logits,
    row_params,
    positions,
    edits,
    counts,
    mask,
    vocab,
    row_stride,
    mask_stride,
    gathered,
    cut,
    cut_id,
    EDITS: tl.constexpr,
    GRAMMAR: tl.constexpr,
    PENALTIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    line = gathered + row * vocab
    k, p, min_p = whole(row_params, row, TOP_K), number(row_params, row, TOP_P), number(row_params, row, MIN_P)
    divisor = heat(row_params, row)
    by_k, by_p = (k > 0) & (k < vocab), p < 1.0
    draws = number(row_params, row, TEMPERATURE) > 0
    n = tl.where(draws & (by_k | by_p | (min_p > 0)), vocab, 0)  # a row without a cut is not read
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        most = tl.maximum(
            most,
            _scaled(
                logits,
                row_params,
                positions,
                edits,
                counts,
                mask,
                row,
                start + lane,
                n,
                vocab,
                row_stride,
                mask_stride,
                divisor,
                EDITS,
                GRAMMAR,
                PENALTIES,
            ),
        )
    greatest = tl.max(most, axis=0)
    floor = tl.where(min_p > 0, greatest + tl.log(min_p), float("-inf"))

    n_search = tl.where(by_k | by_p, n, 0)
    g1, g2, g3, g4 = greatest - 16.0, greatest - 8.0, greatest - 4.0, greatest - 1.5
    c0 = tl.zeros([BLOCK], tl.int32)
    c1, c2, c3, c4 = c0, c0, c0, c0
    m0 = tl.zeros([BLOCK], tl.float32)
    m1, m2, m3, m4 = m0, m0, m0, m0
    for start in range(0, n_search, BLOCK):
        x = _scaled(
            logits,
            row_params,
            positions,
            edits,
            counts,
            mask,
            row,
            start + lane,
            n,
            vocab,
            row_stride,
            mask_stride,
            divisor,
            EDITS,
            GRAMMAR,
            PENALTIES,
        )
        alive = (x >= floor) & (x > float("-inf"))
        weight = tl.where(alive, tl.exp(x - greatest), 0.0)
        c0 += alive.to(tl.int32)
        m0 += weight
        c1 += (alive & (x >= g1)).to(tl.int32)
        m1 += tl.where(x >= g1, weight, 0.0)
        c2 += (alive & (x >= g2)).to(tl.int32)
        m2 += tl.where(x >= g2, weight, 0.0)
        c3 += (alive & (x >= g3)).to(tl.int32)
        m3 += tl.where(x >= g3, weight, 0.0)
        c4 += (alive & (x >= g4)).to(tl.int32)
        m4 += tl.where(x >= g4, weight, 0.0)
    n0, n1, n2, n3, n4 = tl.sum(c0), tl.sum(c1), tl.sum(c2), tl.sum(c3), tl.sum(c4)
    w0, w1, w2, w3, w4 = tl.sum(m0), tl.sum(m1), tl.sum(m2), tl.sum(m3), tl.sum(m4)
    k1, k2, k3, k4 = _key(g1).to(tl.int64), _key(g2).to(tl.int64), _key(g3).to(tl.int64), _key(g4).to(tl.int64)
    bottom = _key(tl.maximum(floor, -3.4028234663852886e38)).to(tl.int64)

    least = tl.where(n > 0, floor, float("-inf"))
    ties_kept, ties = NO_ID, NO_ID  # of values equal to `least`
    total = w0
    for turn in tl.static_range(2):
        if turn == 1:
            wanted = by_p & (n > 0)
        else:
            wanted = by_k & (n > 0) & (n0 > k)
        target = p * total
        low, high = _key(least).to(tl.int64), _key(greatest).to(tl.int64) + 1
        low = tl.maximum(low, bottom)
        low_count, low_mass, high_count, high_mass = n0, w0, 0, 0.0
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            k1, n1, w1, low, high, low_count, low_mass, high_count, high_mass, k, target, turn == 1
        )
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            k2, n2, w2, low, high, low_count, low_mass, high_count, high_mass, k, target, turn == 1
        )
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            k3, n3, w3, low, high, low_count, low_mass, high_count, high_mass, k, target, turn == 1
        )
        low, high, low_count, low_mass, high_count, high_mass = _narrow(
            k4, n4, w4, low, high, low_count, low_mass, high_count, high_mass, k, target, turn == 1
        )
        held = 0
        for start in range(0, tl.where(wanted, n, 0), BLOCK):
            x = _scaled(
                logits,
                row_params,
                positions,
                edits,
                counts,
                mask,
                row,
                start + lane,
                n,
                vocab,
                row_stride,
                mask_stride,
                divisor,
                EDITS,
                GRAMMAR,
                PENALTIES,
            )
            key = _key(x).to(tl.int64)
            inside = (key >= low) & (key < high) & (x > float("-inf"))
            place = held + tl.cumsum(inside.to(tl.int32), axis=0) - 1
            tl.store(line + place, x, mask=inside)
            held += tl.sum(inside.to(tl.int32))
        tl.debug_barrier()  # what other threads gathered is read from here on
        high = tl.where(wanted, high, low)
        found, at_least, above, mass_above = _search(
            line, held, greatest, low, high, low_count, low_mass, high_count, high_mass, k, target, turn == 1, BLOCK
        )
        tl.debug_barrier()  # and gathered anew only when all have read
        value = _value(found.to(tl.int32))
        if turn == 1:
            each = tl.exp(value - greatest)
            room = tl.ceil((target - mass_above) / each)
            kept = tl.maximum(tl.minimum(room, 2147483520.0), 1.0).to(tl.int32)
            kept = tl.where(value == least, tl.minimum(kept, ties_kept), kept)
        else:
            kept = k - above
        same = at_least - above
        least = tl.where(wanted, value, least)
        ties_kept = tl.where(wanted, kept, ties_kept)
        ties = tl.where(wanted, same, ties)
        if turn == 0:
            # the mass above the cut was not summed while counting: gather it from the row once
            sums = tl.zeros([BLOCK], tl.float32)
            for start in range(0, tl.where(wanted & by_p, n, 0), BLOCK):
                x = _scaled(
                    logits,
                    row_params,
                    positions,
                    edits,
                    counts,
                    mask,
                    row,
                    start + lane,
                    n,
                    vocab,
                    row_stride,
                    mask_stride,
                    divisor,
                    EDITS,
                    GRAMMAR,
                    PENALTIES,
                )
                sums += tl.where(x > least, tl.exp(x - greatest), 0.0)
            share = tl.sum(sums) + kept.to(tl.float32) * tl.exp(least - greatest)
            total = tl.where(wanted, share, w0)
    last = NO_ID
    seen = 0
    for start in range(0, tl.where(ties_kept < ties, n, 0), BLOCK):
        x = _scaled(
            logits,
            row_params,
            positions,
            edits,
            counts,
            mask,
            row,
            start + lane,
            n,
            vocab,
            row_stride,
            mask_stride,
            divisor,
            EDITS,
            GRAMMAR,
            PENALTIES,
        )
        equal = (x == least).to(tl.int32)
        order = seen + tl.cumsum(equal, axis=0)
        last = tl.minimum(last, tl.min(tl.where((equal > 0) & (order == ties_kept), start + lane, NO_ID), axis=0))
        seen += tl.sum(equal)
    tl.store(cut + row, least)
    tl.store(cut_id + row, last)


def find_cut(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """(float32 [rows], int32 [rows]): scaled logits above the first stay, and of equal ones ids up to the second."""
    rows, vocab = logits.shape
    cut = torch.empty((rows,), dtype=torch.float32, device=logits.device)
    cut_id = torch.empty((rows,), dtype=torch.int32, device=logits.device)
    if rows:
        gathered = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
        _find_cut[(rows,)](
            **arguments(logits, batch), gathered=gathered, cut=cut, cut_id=cut_id, BLOCK=BLOCK, num_warps=WARPS
        )
    return cut, cut_id
