"""Reference kernels of `sampling.py`: the order of edits and filters here is the contract's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..batch import Logprobs, RowColumn, SamplingBatch
from ..kernel import Kernel, KernelFlags
from ..noise import PARITY, ROTATIONS

if TYPE_CHECKING:
    from .sampling import SamplerSpec, TokenLogprobsSpec
    from .table import OpTable

NEGATIVE_INFINITY = float("-inf")


def sampler(spec: SamplerSpec, table: OpTable) -> Kernel:
    """run(logits, batch) -> tokens. logits: [rows, vocab] in any float type; tokens: int32 [rows].

    In order, in float32: edits (bias, allowed and banned ids), grammar mask, penalties (repetition, frequency,
    presence); a row with temperature 0 takes the best; else divide by temperature, min-p, top-k, top-p, add Gumbel
    noise, take the best. Ties go to the lowest id. Counts of the chosen tokens are raised.
    """

    def run(logits: Tensor, batch: SamplingBatch) -> Tensor:
        mode = batch.mode
        logits = logits.float()
        if mode.edits:
            logits = _edit(logits, batch)
        if mode.grammar and batch.grammar_mask is not None:
            logits = logits.masked_fill(~unpack_mask(batch.grammar_mask, logits.shape[1]), NEGATIVE_INFINITY)
        if mode.penalties:
            logits = _penalize(logits, batch)
        chosen = logits.argmax(dim=-1)
        if mode.noise:
            temperature = _float(batch, RowColumn.TEMPERATURE)
            scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
            if mode.filters:
                scaled = _filter(scaled, batch)
            noisy = (scaled + gumbel_noise(batch, logits.shape[1])).argmax(dim=-1)
            chosen = torch.where(temperature > 0, noisy, chosen)
        if mode.penalties:
            slots = batch.params[:, RowColumn.COUNT_SLOT].long()
            ones = torch.ones_like(slots, dtype=batch.counts.dtype)
            batch.counts[:, 1].index_put_((slots, chosen), ones, accumulate=True)
        return chosen.to(torch.int32)

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True, in_place=("batch.counts",)))


def token_logprobs(spec: TokenLogprobsSpec, table: OpTable) -> Kernel:
    """run(logits, tokens, k) -> Logprobs. logits: [rows, vocab]; tokens: int32 [rows].

    Log-softmax in float32 of the logits as the model gave them, before any edit; rank counts strictly better tokens.
    """

    def run(logits: Tensor, tokens: Tensor, k: int) -> Logprobs:
        scores = logits.float().log_softmax(dim=-1)
        chosen = scores.gather(1, tokens.long()[:, None])
        rank = (scores > chosen).sum(dim=-1).to(torch.int32) + 1
        top, top_ids = scores.topk(k, dim=-1) if k else (scores[:, :0], scores[:, :0])
        return Logprobs(chosen=chosen[:, 0], rank=rank, top_ids=top_ids.to(torch.int32), top=top)

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))


def gumbel_noise(batch: SamplingBatch, vocab_size: int) -> Tensor:
    """Standard Gumbel noise, float32 [rows, vocab], as `noise.py` defines it."""
    device = batch.params.device
    pairs = torch.arange((vocab_size + 1) // 2, dtype=torch.int32, device=device)[None, :]
    key0 = batch.params[:, RowColumn.NOISE_KEY0, None]
    key1 = batch.params[:, RowColumn.NOISE_KEY1, None]
    words = threefry(key0, key1, pairs, batch.positions.to(torch.int32)[:, None])
    bits = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]
    uniform = (((bits >> 9) & 0x7FFFFF).float() + 0.5) * 2.0**-23
    return uniform.log_().neg_().log_().neg_()


def threefry(key0: Tensor, key1: Tensor, counter0: Tensor, counter1: Tensor) -> tuple[Tensor, Tensor]:
    """Threefry-2x32-20 on broadcastable int32 tensors (bit patterns of uint32)."""
    parity = PARITY  # fits int32
    keys = (key0, key1, key0 ^ key1 ^ parity)
    x0, x1 = counter0 + key0, counter1 + key1
    x0, x1 = torch.broadcast_tensors(x0, x1)
    x0, x1 = x0.clone(), x1.clone()
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 += x1
            carried = (x1 >> (32 - rotation)) & ((1 << rotation) - 1)
            x1 = (x1 << rotation).bitwise_or_(carried).bitwise_xor_(x0)
        x0 += keys[(group + 1) % 3]
        x1 += keys[(group + 2) % 3] + (group + 1)
    return x0, x1


def unpack_mask(mask: Tensor, vocab_size: int) -> Tensor:
    """bool [rows, vocab] of int32 [rows, ceil(vocab / 32)], bit v % 32 of word v / 32."""
    bits = torch.arange(32, dtype=torch.int32, device=mask.device)
    return ((mask[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab_size]


def _float(batch: SamplingBatch, column: RowColumn) -> Tensor:
    return batch.params[:, column].contiguous().view(torch.float32)


def _edit(logits: Tensor, batch: SamplingBatch) -> Tensor:
    slots = batch.params[:, RowColumn.EDIT_SLOT].long()
    early = batch.positions < batch.params[:, RowColumn.EDIT_UNTIL]
    edits = batch.edits[slots]  # [rows, 2, vocab]
    return logits + edits[:, 0] + torch.where(early[:, None], edits[:, 1], 0.0)


def _penalize(logits: Tensor, batch: SamplingBatch) -> Tensor:
    counts = batch.counts[batch.params[:, RowColumn.COUNT_SLOT].long()]  # [rows, 2, vocab]
    counted = batch.params[:, RowColumn.COUNT_SLOT, None] > 0
    output = torch.where(counted, counts[:, 1], 0)
    seen = ((counts[:, 0] > 0) | (output > 0)) & counted
    repetition = _float(batch, RowColumn.REPETITION)[:, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, repeated, logits)
    logits = logits - _float(batch, RowColumn.FREQUENCY)[:, None] * output
    return logits - _float(batch, RowColumn.PRESENCE)[:, None] * (output > 0)


def _filter(logits: Tensor, batch: SamplingBatch) -> Tensor:
    min_p = _float(batch, RowColumn.MIN_P)[:, None]
    floor = logits.amax(dim=-1, keepdim=True) + min_p.log()  # log(0) = -inf keeps all
    logits = logits.masked_fill(logits < floor, NEGATIVE_INFINITY)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    top_k = batch.params[:, RowColumn.TOP_K, None]
    place = torch.arange(logits.shape[1], device=logits.device)[None, :]
    ordered = ordered.masked_fill((top_k > 0) & (place >= top_k), NEGATIVE_INFINITY)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    top_p = _float(batch, RowColumn.TOP_P)[:, None]
    ordered = ordered.masked_fill((before >= top_p) & (place > 0) & (top_p < 1), NEGATIVE_INFINITY)
    return torch.full_like(logits, NEGATIVE_INFINITY).scatter_(1, order, ordered)
