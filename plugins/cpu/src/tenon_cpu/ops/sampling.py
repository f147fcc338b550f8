"""Sampling on the CPU: the contract's tokens without sorting the vocabulary or drawing noise for all of it.

Noise belongs to a token id, so it is drawn only for ids that can still win. Filters look at the best few hundred
logits; what they cannot decide there goes to the reference, as do edits, grammars and penalties.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tenon_platforms.batch import RowColumn, SamplingBatch
from tenon_platforms.kernel import Kernel, KernelFlags
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.ops.sampling_reference import sampler as reference_sampler
from tenon_platforms.ops.sampling_reference import threefry
from tenon_platforms.ops.table import OpTable

NEGATIVE_INFINITY = float("-inf")
CANDIDATES = 1024  # looked at when a row has top-p or min-p but no top-k
MOST_TOP_K = 1024
FIRST = 64  # candidates that set the bar for all others without filters
LARGEST_NOISE = 16.7  # Gumbel noise of the largest uniform, 1 - 2^-24, is 16.636


class Survivors(NamedTuple):
    """Tokens that may be drawn, [rows, n]: scaled logits, -inf where filtered out, and ids."""

    scores: Tensor
    ids: Tensor


def sampler(spec: SamplerSpec, table: OpTable) -> Kernel:
    """run(logits, batch) -> tokens, as the reference's."""
    reference = reference_sampler(spec, table)

    def run(logits: Tensor, batch: SamplingBatch) -> Tensor:
        mode = batch.mode
        if mode.edits or mode.penalties or mode.grammar:
            tokens: Tensor = reference.run(logits, batch)
            return tokens
        if not mode.noise or not logits.shape[0]:
            return logits.argmax(-1).to(torch.int32)
        logits = logits.float()
        temperature = _float(batch, RowColumn.TEMPERATURE)
        scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
        survivors = _filter(scaled, batch) if mode.filters else _contenders(scaled, batch)
        if survivors is None:
            fallback: Tensor = reference.run(logits, batch)
            return fallback
        drawn = _best(survivors, batch)
        if bool((temperature > 0).all()):
            return drawn
        return torch.where(temperature > 0, drawn, logits.argmax(-1).to(torch.int32))

    return Kernel(name="survivors only", run=run, flags=KernelFlags(graph_safe=False, batch_invariant=True))


def _filter(scaled: Tensor, batch: SamplingBatch) -> Survivors | None:
    """Min-p, top-k, top-p on the best few, or None where those do not decide."""
    vocab = scaled.shape[1]
    top_k = batch.params[:, RowColumn.TOP_K].long()
    top_p, min_p = _float(batch, RowColumn.TOP_P), _float(batch, RowColumn.MIN_P)
    limited = bool((top_k > 0).all())
    width = min(int(top_k.max()) + 1 if limited else CANDIDATES, vocab)
    if limited and width > MOST_TOP_K:
        return None
    scores, ids = scaled.topk(width, dim=-1)
    ids, order = ids.sort(dim=-1)  # ties go to the lowest id
    scores, order = scores.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    best, least = scores[:, :1], scores[:, -1:]
    floor = best + min_p.log()[:, None]
    kept = scores >= floor
    place = torch.arange(width)
    kept &= (top_k[:, None] <= 0) | (place < top_k[:, None])
    alive = scores.masked_fill(~kept, NEGATIVE_INFINITY)
    total = _total(scaled, alive, floor, best, top_k)
    share = (alive - best).exp() / total
    before = share.cumsum(-1) - share
    kept &= (before < top_p[:, None]) | (place == 0) | (top_p[:, None] >= 1)
    if width < vocab and bool((kept & (scores == least)).any()):
        return None  # what lies beyond may belong to them
    return Survivors(scores.masked_fill(~kept, NEGATIVE_INFINITY), ids)


def _total(scaled: Tensor, alive: Tensor, floor: Tensor, best: Tensor, top_k: Tensor) -> Tensor:
    """What top-p's shares are shares of, [rows, 1]: the survivors of min-p and top-k, also beyond the best few."""
    near = (alive - best).exp().sum(-1, keepdim=True)
    if bool((top_k > 0).all()):
        return near
    everyone = (scaled.masked_fill(scaled < floor, NEGATIVE_INFINITY) - best).exp().sum(-1, keepdim=True)
    return torch.where(top_k[:, None] > 0, near, everyone)


def _contenders(scaled: Tensor, batch: SamplingBatch) -> Survivors | None:
    """Tokens that could beat the best of the first few, were their noise the largest there is."""
    vocab = scaled.shape[1]
    scores, ids = scaled.topk(min(FIRST, vocab), dim=-1)
    bar = (scores + gumbel_of(ids, batch)).amax(-1, keepdim=True) - LARGEST_NOISE
    possible = scaled >= bar
    most = int(possible.sum(-1).max())
    if most > vocab // 2:
        return None
    if most > ids.shape[1]:
        scores, ids = scaled.topk(most, dim=-1, sorted=False)
    return Survivors(scores, ids)


def _best(survivors: Survivors, batch: SamplingBatch) -> Tensor:
    """int32 [rows]: the id of the greatest noisy score, the lowest of equal ones."""
    noisy = survivors.scores + gumbel_of(survivors.ids, batch)
    winners = noisy == noisy.amax(-1, keepdim=True)
    return survivors.ids.masked_fill(~winners, 2**31 - 1).amin(-1).to(torch.int32)


def gumbel_of(ids: Tensor, batch: SamplingBatch) -> Tensor:
    """Standard Gumbel noise of some token ids, int64 [rows, n], as `tenon_platforms.noise` defines it."""
    narrow = ids.to(torch.int32)
    key0, key1 = batch.params[:, RowColumn.NOISE_KEY0, None], batch.params[:, RowColumn.NOISE_KEY1, None]
    even, odd = threefry(key0, key1, narrow >> 1, batch.positions.to(torch.int32)[:, None])
    bits = torch.where((narrow & 1).bool(), odd, even)
    uniform = (((bits >> 9) & 0x7FFFFF).float() + 0.5) * 2.0**-23
    return uniform.log_().neg_().log_().neg_()


def _float(batch: SamplingBatch, column: RowColumn) -> Tensor:
    return batch.params[:, column].contiguous().view(torch.float32)
