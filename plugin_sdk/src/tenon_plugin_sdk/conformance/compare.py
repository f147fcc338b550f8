"""Found against true: one comparison for every op, and a message that says where and how far.

A value is right where it lies within the bound, the output's rounding and what flushing to zero may lose. Beyond the
largest finite value of the output's type, infinity is right too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.torch_dtypes import to_torch

from .registry import ConformanceError
from .truth.int8_heads import SCALE_ULPS
from .truth.rounding import U32, Bounded, largest, tiny, unit


def assert_close(found: Tensor, want: Bounded, dtype: DType, *, what: str, valid: Tensor | None = None) -> None:
    """Raise `ConformanceError` where `found` (on the host) is not of type `dtype`, or no rounding of `want`.

    valid: bool, broadcastable: only there a value is asked for.
    """
    if tuple(found.shape) != tuple(want.value.shape):
        raise ConformanceError(f"{what}: shape {list(found.shape)}, expected {list(want.value.shape)}")
    if found.dtype != to_torch(dtype):
        raise ConformanceError(f"{what}: {found.dtype}, expected {to_torch(dtype)}")
    if not found.numel():
        return
    wide, true = found.double(), want.value
    allowed = want.error + unit(dtype) * (true.abs() + want.error) + tiny(dtype)
    error = (wide - true).abs()
    over = (true.abs() + allowed) >= largest(dtype)
    right = (error <= allowed) | (over & (wide.abs() >= largest(dtype)) & (wide.sign() == true.sign()))
    if valid is not None:
        right = right | ~valid.expand_as(right)
    if bool(right.all()):
        return
    raise ConformanceError(_describe(wide, true, error, allowed, ~right, what))


def assert_equal(found: Tensor, want: Tensor, *, what: str) -> None:
    """Raise where two host tensors differ in shape, type or any element; NaN equals NaN."""
    if tuple(found.shape) != tuple(want.shape) or found.dtype != want.dtype:
        raise ConformanceError(f"{what}: {found.dtype} {list(found.shape)}, expected {want.dtype} {list(want.shape)}")
    same = found == want
    if found.dtype.is_floating_point:
        same = same | (found.isnan() & want.isnan())
    if bool(same.all()):
        return
    place = tuple(int(i) for i in (~same).nonzero()[0])
    raise ConformanceError(
        f"{what}: {int((~same).sum())} of {same.numel()} elements differ, first at {list(place)}:"
        f" {found[place].item()!r}, expected {want[place].item()!r}"
    )


def assert_kept(found: Tensor, want: Tensor, kv: DType, *, what: str) -> None:
    """Raise where a cache of type `kv` does not give back `want`, which it holds exactly; int8: but for its scale."""
    if kv is not DType.INT8:
        return assert_equal(found, want, what=what)
    wide = want.double()
    return assert_close(found, Bounded(wide, SCALE_ULPS * U32 * wide.abs()), DType.FLOAT32, what=what)


def _describe(wide: Tensor, true: Tensor, error: Tensor, allowed: Tensor, wrong: Tensor, what: str) -> str:
    ratio = torch.where(wrong, (error / allowed).nan_to_num(nan=math.inf, posinf=math.inf), 0.0)
    place = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    both = wide.isfinite() & true.isfinite()
    lost = ((wide - true)[both] ** 2).sum() / (true[both] ** 2).sum().clamp_min(1e-300)
    return (
        f"{what}: {int(wrong.sum())} of {wrong.numel()} values are wrong; the worst at {list(place)} is"
        f" {wide[place].item():.9g}, float64 says {true[place].item():.9g}:"
        f" off by {error[place].item():.3g}, the"
        f" formula allows {allowed[place].item():.3g};"
        f" NMSE {float(lost):.3g}, {int((~wide.isfinite()).sum())} not finite"
    )
