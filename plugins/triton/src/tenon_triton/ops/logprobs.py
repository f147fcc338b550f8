"""Log-probabilities of given tokens, their ranks and the best few, in two launches over a row split among programs.

First every part's greatest value, sum of exponentials, number of better tokens, and its own best few by repeated
choice; then the parts of a row are joined. More than `MOST` best ones go through torch's top-k instead.
Their number is an argument: one pair of kernels serves up to `FEW`, another up to `MOST`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.batch import Logprobs
from tenon_platforms.kernel import Kernel, KernelFlags
from tenon_platforms.ops.sampling import TokenLogprobsSpec

PART = 4096  # ids a program looks at
FEW, MOST = 8, 32
NO_ID: tl.constexpr = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["k"])
def _parts(
    logits,
    tokens,
    greatest,
    sums,
    better,
    top,
    top_ids,
    vocab,
    row_stride,
    k,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * PART + tl.arange(0, PART)
    inside = ids < vocab
    line = logits + row * row_stride
    x = tl.load(line + ids, mask=inside, other=float("-inf")).to(tl.float32)
    chosen = tl.load(line + tl.load(tokens + row)).to(tl.float32)
    most = tl.max(x, axis=0)
    place = row * PARTS + part
    tl.store(greatest + place, most)
    tl.store(sums + place, tl.sum(tl.where(x > float("-inf"), tl.exp(x - most), 0.0), axis=0))
    tl.store(better + place, tl.sum((inside & (x > chosen)).to(tl.int32), axis=0))
    left = inside
    for index in range(k):
        value = tl.max(tl.where(left, x, float("-inf")), axis=0)
        which = tl.min(tl.where(left & (x == value), ids, NO_ID), axis=0)
        tl.store(top + place * k + index, value)
        tl.store(top_ids + place * k + index, which)
        left = left & (ids != which)


@triton.jit(do_not_specialize=["k"])
def _join(
    logits,
    tokens,
    greatest,
    sums,
    better,
    top,
    top_ids,
    chosen_out,
    rank_out,
    ids_out,
    values_out,
    row_stride,
    k,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDTH)
    there = part < PARTS
    most = tl.load(greatest + row * PARTS + part, mask=there, other=float("-inf"))
    peak = tl.max(most, axis=0)
    share = tl.load(sums + row * PARTS + part, mask=there, other=0.0)
    total = tl.sum(tl.where(share > 0, share * tl.exp(most - peak), 0.0), axis=0)
    norm = peak + tl.log(total)
    chosen = tl.load(logits + row * row_stride + tl.load(tokens + row)).to(tl.float32)
    tl.store(chosen_out + row, chosen - norm)
    tl.store(rank_out + row, tl.sum(tl.load(better + row * PARTS + part, mask=there, other=0), axis=0) + 1)
    if k > 0:
        lane = tl.arange(0, CANDIDATES)
        held = lane < PARTS * k
        x = tl.load(top + row * (PARTS * k) + lane, mask=held, other=float("-inf"))
        ids = tl.load(top_ids + row * (PARTS * k) + lane, mask=held, other=NO_ID)
        left = held & (ids < NO_ID)
        for index in range(k):
            value = tl.max(tl.where(left, x, float("-inf")), axis=0)
            which = tl.min(tl.where(left & (x == value), ids, NO_ID), axis=0)
            tl.store(values_out + row * k + index, value - norm)
            tl.store(ids_out + row * k + index, which)
            left = left & (ids != which)


def token_logprobs(spec: TokenLogprobsSpec) -> Kernel:
    """run(logits, tokens, k) -> Logprobs, as the reference's; of equal ones the lowest ids are the best."""

    def run(logits: Tensor, tokens: Tensor, k: int) -> Logprobs:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        (rows, vocab), device = logits.shape, logits.device
        count = 0 if k > MOST else k
        parts = triton.cdiv(vocab, PART)

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        chosen, rank = room(rows), room(rows, dtype=torch.int32)
        top, top_ids = room(rows, count), room(rows, count, dtype=torch.int32)
        if rows:
            held = (room(rows, parts), room(rows, parts), room(rows, parts, dtype=torch.int32))
            best = (room(rows, parts, count), room(rows, parts, count, dtype=torch.int32))
            _parts[(rows, parts)](
                logits, tokens, *held, *best, vocab, logits.stride(0), count, PARTS=parts, PART=PART, num_warps=4
            )
            _join[(rows,)](
                logits,
                tokens,
                *held,
                *best,
                chosen,
                rank,
                top_ids,
                top,
                logits.stride(0),
                count,
                PARTS=parts,
                WIDTH=triton.next_power_of_2(parts),
                CANDIDATES=triton.next_power_of_2(parts * (FEW if count <= FEW else MOST)),
                num_warps=4,
            )
        if k > count:
            top, wide_ids = logits.float().log_softmax(dim=-1).topk(k, dim=-1)
            top_ids = wide_ids.to(torch.int32)
        return Logprobs(chosen=chosen, rank=rank, top_ids=top_ids, top=top)

    return Kernel(name="triton parts", run=run, flags=KernelFlags(batch_invariant=True))
