"""Attention in float64, row by row, and the bound of what float arithmetic may do to it.

Scores are sums of head_dim products; probabilities may be rounded to the kernel's type before they meet the values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec

from .rounding import FUNCTION_ULPS, U32, Bounded, sum_error, tiny, unit

LEAST_WEIGHT = 2 * tiny(DType.FLOAT32)


def attend(spec: AttentionSpec, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Bounded:
    """One row. query: [n, heads, dim], the last n tokens of [length, kv heads, dim] keys and values."""
    count, length = len(query), len(key)
    group = spec.num_heads // spec.num_kv_heads
    q = query.double()
    k, v = (part.double().repeat_interleave(group, dim=1) for part in (key, value))  # [length, heads, dim]
    place, at = torch.arange(length)[None], torch.arange(length - count, length)[:, None]
    visible = place <= at if spec.causal else torch.ones(count, length, dtype=torch.bool)
    if spec.sliding_window:
        visible = visible & (place > at - spec.sliding_window)
    hidden = ~visible.any(0)
    k, v = k.masked_fill(hidden[:, None, None], 0), v.masked_fill(hidden[:, None, None], 0)
    scores = torch.einsum("qhd,lhd->hql", q, k) * spec.scale
    norms = q.norm(dim=-1).T[:, :, None] * k.norm(dim=-1).T[:, None] * abs(spec.scale)
    error = sum_error(spec.head_dim) * norms + FUNCTION_ULPS * U32 * scores.abs()
    # queries may be scaled, and rounded, before the product
    error = error + (unit(spec.dtype) if unit(spec.dtype) > U32 * 4 else 0.0) * norms / spec.head_dim**0.5
    if spec.soft_cap:
        scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
        error = error + FUNCTION_ULPS * U32 * spec.soft_cap
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = _softmax(scores, sinks)
    worst = torch.where(visible, error, 0.0).amax(-1, keepdim=True)
    relative = torch.expm1(2 * worst) + U32 * (FUNCTION_ULPS + length**0.5) + unit(spec.dtype)
    size = torch.einsum("hql,lhd->qhd", weights, v.abs())
    mixed = torch.einsum("hql,lhd->qhd", weights, v)
    lost = LEAST_WEIGHT * v.abs().sum(0)  # what a probability that is flushed to zero, or is no smaller, may do
    return Bounded(mixed, size * (relative.permute(1, 0, 2) + sum_error(length)) + lost)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """[heads, query, length]; a sink takes its share and gives nothing."""
    if sinks is None:
        return scores.softmax(-1)
    extra = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]
