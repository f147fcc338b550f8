"""Norms, activations, feed-forwards and rotations in float64, each with what float arithmetic may do to it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.rope import RopeSpec

from .rounding import FUNCTION_ULPS, U32, Bounded, matmul, sum_error, unit


def rms_norm(x: Bounded, weight: Tensor, eps: float, offset: float, dtype: DType) -> Bounded:
    """x / sqrt(mean(x^2) + eps) * (weight + offset) over the last axis; rounded to `dtype` before and after weight."""
    hidden = x.value.shape[-1]
    mean = x.value.pow(2).mean(-1, keepdim=True) + eps
    scaled = x.value / mean.sqrt()
    # d(scaled) = dx / rms - scaled * (x . dx) / (hidden * rms^2)
    through = (x.value.abs() * x.error).sum(-1, keepdim=True) / (hidden * mean)
    error = x.error / mean.sqrt() + scaled.abs() * through
    relative = U32 * (hidden**0.5 + FUNCTION_ULPS)
    return Bounded(scaled, error).rounded(relative).rounded(unit(dtype)).scaled(weight.double() + offset).rounded(U32)


def layer_norm(x: Bounded, weight: Tensor, bias: Tensor, eps: float) -> Bounded:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, in float32 until the end."""
    hidden = x.value.shape[-1]
    norm = x.value.norm(dim=-1, keepdim=True)
    centred = x.value - x.value.mean(-1, keepdim=True)
    lost = x.error + x.error.mean(-1, keepdim=True) + sum_error(hidden) * norm / hidden**0.5 + U32 * centred.abs()
    variance = centred.pow(2).mean(-1, keepdim=True) + eps
    scaled = centred / variance.sqrt()
    through = (centred.abs() * lost).sum(-1, keepdim=True) / (hidden * variance)
    error = lost / variance.sqrt() + scaled.abs() * through
    relative = U32 * (hidden**0.5 + FUNCTION_ULPS)
    return Bounded(scaled, error).rounded(relative).scaled(weight).rounded(U32).plus(Bounded.exact(bias)).rounded(U32)


def activation(x: Bounded, name: str) -> Bounded:
    """The activation; its slope is at most 1.13 for all of them. Near zero its relative error is that of x."""
    value = x.value
    if name == "silu":
        made = value * torch.sigmoid(value)
    elif name == "gelu":
        made = 0.5 * value * (1 + torch.erf(value / math.sqrt(2.0)))
    elif name == "gelu_tanh":
        made = 0.5 * value * (1 + torch.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
    elif name == "relu":
        made = value.clamp_min(0)
    else:
        raise ValueError(f"no truth for the activation {name!r}")
    # 1 + erf cancels for negative x, so the error is relative to x, not to the small result
    return Bounded(made, 1.13 * x.error + FUNCTION_ULPS * U32 * value.abs())


def activation_mul(x: Bounded, name: str, dtype: DType) -> Bounded:
    """activation(first half) * second half; the activation rounded to `dtype`."""
    half = x.value.shape[-1] // 2
    gate = activation(x[..., :half], name).rounded(unit(dtype))
    return gate.times(x[..., half:]).rounded(U32)


def gated_mlp(
    x: Bounded, gate_up: Tensor, down: Tensor, name: str, dtype: DType, *, weight_error: float, down_error: float
) -> Bounded:
    """down(activation(gate x) * up x); intermediates rounded to `dtype`. Weights [out, in] in float64."""
    both = matmul(x, gate_up, weight_error).rounded(unit(dtype))
    hidden = activation_mul(both, name, dtype).rounded(unit(dtype))
    return matmul(hidden, down, down_error)


def mlp(
    x: Bounded,
    up: tuple[Tensor, Tensor | None, float],
    down: tuple[Tensor, Tensor | None, float],
    name: str,
    dtype: DType,
) -> Bounded:
    """down(activation(up x)); intermediates rounded to `dtype`. A side: weight [out, in], bias, the weight's error."""
    hidden = activation(biased(x, up, dtype).rounded(unit(dtype)), name).rounded(unit(dtype))
    return biased(hidden, down, dtype)


def biased(x: Bounded, side: tuple[Tensor, Tensor | None, float], dtype: DType) -> Bounded:
    """x W^T + bias, the product rounded to `dtype` before the bias comes to it."""
    weight, bias, weight_error = side
    product = matmul(x, weight, weight_error)
    if bias is None:
        return product
    return product.rounded(unit(dtype)).plus(Bounded.exact(bias.expand_as(product.value)))


def rope(x: Bounded, positions: Tensor, table: Tensor, spec: RopeSpec, dtype: DType) -> Bounded:
    """x [tokens, heads, head_dim] rotated by a table of cosines and sines, given in float32, rounded to `dtype`.

    positions: int [axes, tokens]. Products and their sum are rounded to `dtype`, as Transformers rounds them.
    """
    half = spec.rotary_dim // 2
    wide = table.double()
    if spec.axis_sections:
        axis = torch.repeat_interleave(torch.arange(len(spec.axis_sections)), torch.tensor(spec.axis_sections))
        picked = torch.stack([wide[positions[int(a)].long()] for a in axis], dim=1)  # [tokens, half, rotary_dim]
        index = torch.arange(half)
        cos, sin = picked[:, index, index], picked[:, index, half + index]
    else:
        found = wide[positions[0].long()]
        cos, sin = found[:, :half], found[:, half:]
    cos, sin = cos[:, None], sin[:, None]
    if spec.interleaved:
        first, second = x[..., 0 : spec.rotary_dim : 2], x[..., 1 : spec.rotary_dim : 2]
    else:
        first, second = x[..., :half], x[..., half : spec.rotary_dim]
    a = _turn(first, second, cos, -sin, dtype)
    b = _turn(second, first, cos, sin, dtype)
    value, error = x.value.clone(), x.error.clone()
    places = (
        (slice(0, spec.rotary_dim, 2), slice(1, spec.rotary_dim, 2))
        if spec.interleaved
        else (slice(0, half), slice(half, spec.rotary_dim))
    )
    for place, turned in zip(places, (a, b), strict=True):
        value[..., place], error[..., place] = turned.value, turned.error
    return Bounded(value, error)


def _turn(x: Bounded, y: Bounded, cos: Tensor, sin: Tensor, dtype: DType) -> Bounded:
    """x cos + y sin: cosine and sine rounded, both products rounded, the sum rounded."""
    left, right = x.scaled(cos), y.scaled(sin)
    size = left.value.abs() + left.error + right.value.abs() + right.error
    total = left.plus(right)
    return Bounded(total.value, total.error + 3 * unit(dtype) * size)


def route(x: Bounded, router: Tensor, top_k: int, *, renormalize: bool, dtype: DType) -> tuple[Tensor, Bounded, Tensor]:
    """(experts int64 [tokens, top_k], their weights, bool [tokens]: whether the choice was no near tie)."""
    logits = matmul(x, router, unit(dtype)).rounded(unit(dtype))
    scores = logits.value.softmax(-1)
    spread = logits.error.amax(-1, keepdim=True)
    relative = torch.expm1(2 * spread) + U32 * (FUNCTION_ULPS + scores.shape[-1] ** 0.5)
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    clear = torch.ones(len(scores), dtype=torch.bool)
    if top_k < scores.shape[-1]:
        kept, dropped = ordered[:, top_k - 1], ordered[:, top_k]
        clear = (kept - dropped) > (kept + dropped) * relative[:, 0]
    weights = Bounded(ordered[:, :top_k], ordered[:, :top_k] * relative)
    if renormalize:
        total = weights.value.sum(-1, keepdim=True)
        error = (weights.error + weights.value / total * weights.error.sum(-1, keepdim=True)) / total
        weights = Bounded(weights.value / total, error)
    return order[:, :top_k], weights.rounded(unit(dtype)), clear


def moe(
    x: Bounded,
    router: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *,
    top_k: int,
    renormalize: bool,
    name: str,
    dtype: DType,
    weight_error: tuple[float, float],
) -> tuple[Bounded, Tensor]:
    """(y [tokens, hidden], bool [tokens]: where the experts are certain). gate_up [E, 2F, H], down [E, H, F], float64.

    A sum over the chosen experts is rounded to `dtype` at every term.
    """
    experts, weights, clear = route(x, router, top_k, renormalize=renormalize, dtype=dtype)
    value = torch.zeros_like(x.value)
    error, size = torch.zeros_like(value), torch.zeros_like(value)
    for index in range(len(router)):
        token, place = torch.where(experts == index)
        if not len(token):
            continue
        part = gated_mlp(
            x[token], gate_up[index], down[index], name, dtype, weight_error=weight_error[0], down_error=weight_error[1]
        ).rounded(unit(dtype))
        share = Bounded(weights.value[token, place, None], weights.error[token, place, None])
        term = part.times(share)
        value.index_add_(0, token, term.value)
        error.index_add_(0, token, term.error)
        size.index_add_(0, token, term.value.abs() + term.error)
    return Bounded(value, error + (top_k + 1) * unit(dtype) * size), clear


__all__ = ["activation", "activation_mul", "gated_mlp", "matmul", "moe", "rms_norm", "rope", "route", "sum_error"]
