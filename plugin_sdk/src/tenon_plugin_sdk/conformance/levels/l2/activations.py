"""Activations for linears whose scheme rounds them.

A kernel may round activations as its scheme says, or keep more of them. Both must be right, so half of the draws are
values that rounding does not change: codes at a power of two, the largest one in every row or run. They are held to the
ordinary bound. The other half may be anything, and the bound holds what rounding may do to each value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tenon_platforms.ops.linear import WeightScheme
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel
from tenon_platforms.ops.quantized_reference import FP8_MAX, INT8_MAX, ROUNDING

from ...cases.quantized import FP8, STATIC_SCALE
from ...truth.rounding import Bounded

FP8_STEP, FP8_FLOOR = 2.0**-3, 2.0**-9  # a code's relative step, and the step of subnormals; a device may cut off


def given(schemes: tuple[WeightScheme, ...], x: Tensor, seed: int) -> tuple[Tensor, Bounded]:
    """(values [tokens, in] to call with, what they are to a kernel) of drawn ones."""
    rounding = next((scheme for scheme in schemes if isinstance(scheme, ROUNDING)), None)
    if rounding is None:
        return x, Bounded.exact(x)
    if seed % 2 == 0:
        made = _codes(rounding, x)
        return made, Bounded.exact(made)
    return x, seen(schemes, Bounded.exact(x))


def seen(schemes: tuple[WeightScheme, ...], rows: Bounded) -> Bounded:
    """What rows [tokens, in] may be to a product of these schemes, which may round them or not."""
    rounding = next((scheme for scheme in schemes if isinstance(scheme, ROUNDING)), None)
    if rounding is None:
        return rows
    size = (rows.value.abs() + rows.error).nan_to_num(0, 0, 0)
    return Bounded(rows.value, rows.error + _lost(rounding, size))


def _codes(scheme: WeightScheme, x: Tensor) -> Tensor:
    """Values near x that the scheme's codes hold exactly; rows that are no numbers stay what they are."""
    wide = x.double()
    runs = _runs(scheme, wide.nan_to_num(0, 0, 0))  # [tokens, runs, columns]
    top = INT8_MAX if isinstance(scheme, Int8Channel) else FP8_MAX
    largest = runs.abs().amax(-1, keepdim=True)
    unit = torch.exp2(torch.floor(torch.log2(torch.where(largest > 0, largest, 1.0) / top)))
    if isinstance(scheme, FP8Static):
        unit = torch.full_like(unit, STATIC_SCALE)
    scaled = (runs / unit).clamp(-top, top)
    codes = scaled.round() if isinstance(scheme, Int8Channel) else scaled.float().to(FP8).double()
    codes[..., :1] = torch.where(largest > 0, top, 0.0)
    made = (codes * unit).flatten(1)[:, : x.shape[1]].to(x.dtype)
    return torch.where(wide.isfinite(), made, x)


def _lost(scheme: WeightScheme, x: Tensor) -> Tensor:
    """What rounding may do to each value."""
    runs = _runs(scheme, x)
    largest = runs.abs().amax(-1, keepdim=True).expand(runs.shape).flatten(1)[:, : x.shape[1]]
    if isinstance(scheme, Int8Channel):
        step: Tensor = largest / INT8_MAX
        return step
    scale = largest / FP8_MAX
    clamped = torch.zeros_like(x)
    if isinstance(scheme, FP8Static):
        scale = torch.maximum(scale, torch.full_like(x, STATIC_SCALE))
        clamped = (x.abs() - FP8_MAX * STATIC_SCALE).clamp_min(0)
    lost: Tensor = torch.maximum(FP8_STEP * x.abs(), FP8_FLOOR * scale) + clamped
    return lost


def _runs(scheme: WeightScheme, x: Tensor) -> Tensor:
    """[tokens, runs, columns] of what shares a scale, padded with zeros."""
    width = scheme.columns if isinstance(scheme, FP8Block) else max(x.shape[1], 1)
    runs: Tensor = torch.nn.functional.pad(x, (0, -x.shape[1] % width)).unflatten(1, (-1, width))
    return runs
