"""What the schemes of `quantized.py` mean, in plain torch: weights expanded, activations as a scheme rounds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..torch_dtypes import rounded_to
from .linear import FP8Channel, WeightScheme
from .quantized import FP8Block, FP8Static, Int8Channel, IntGroups

if TYPE_CHECKING:
    from .weights import PartTensors

FP8_MAX = 448.0  # the largest finite float8_e4m3fn
INT8_MAX = 127.0
CHANNELS = (FP8Channel, FP8Static, Int8Channel)  # a scale a row
ROUNDING = (FP8Channel, FP8Static, FP8Block, Int8Channel)  # schemes that round activations too


def expand(scheme: WeightScheme, tensors: PartTensors, wide: torch.dtype) -> Tensor | None:
    """The weight [..., out, in] computed in `wide`, float32 or float64; None for a scheme of another module."""
    if isinstance(scheme, CHANNELS):
        weight: Tensor = tensors["weight"].to(wide) * tensors["scale"].to(wide)[..., None]
        return weight
    if isinstance(scheme, FP8Block):
        weight = tensors["weight"].to(wide)
        scale = tensors["scale"].to(wide).repeat_interleave(scheme.rows, -2).repeat_interleave(scheme.columns, -1)
        blocks: Tensor = weight * scale[..., : weight.shape[-2], : weight.shape[-1]]
        return blocks
    if isinstance(scheme, IntGroups):
        codes = unpacked(scheme, tensors["weight"]).to(wide)
        where = column_groups(scheme, tensors, codes.shape[-1]).unsqueeze(-2).expand(codes.shape)
        scale = tensors["scale"].to(wide).gather(-1, where)
        if not scheme.zeros:
            return scale * (codes - (1 << (scheme.bits - 1)))
        return scale * (codes - tensors["zero"].to(wide).gather(-1, where))
    return None


def unpacked(scheme: IntGroups, weight: Tensor) -> Tensor:
    """uint8 codes [..., out, in] of a stored weight."""
    if scheme.bits == 8:
        return weight
    return torch.stack((weight & 15, weight >> 4), dim=-1).flatten(-2)


def column_groups(scheme: IntGroups, tensors: PartTensors, columns: int) -> Tensor:
    """int64 [..., in]: the group of every column."""
    if scheme.ordered:
        return tensors["group"].long()
    place = torch.arange(columns, device=tensors["weight"].device)
    return place // (scheme.group_size or columns)


def quantize_fp8(values: Tensor) -> tuple[Tensor, Tensor]:
    """(float8_e4m3fn like values, float32 [...]): every row with its own scale, max(|row|) / 448, 1 for zeros."""
    wide, scale = _row_scales(values, FP8_MAX)
    return rounded_to(wide / scale[..., None], torch.float8_e4m3fn), scale


def quantize_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 like values, float32 [...]): every row with its own scale, max(|row|) / 127, 1 for zeros; ties to even."""
    wide, scale = _row_scales(values, INT8_MAX)
    return (wide / scale[..., None]).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def rounded_input(scheme: WeightScheme, x: Tensor, input_scale: Tensor | None = None) -> Tensor:
    """x [..., in] as a scheme sees it, in x's type; input_scale: the weights' tensor of that name, where it is one."""
    if isinstance(scheme, FP8Static):
        assert input_scale is not None
        scale = input_scale.float()
        return (rounded_to(x.float() / scale, torch.float8_e4m3fn).float() * scale).to(x.dtype)
    if isinstance(scheme, FP8Block):
        width = x.shape[-1]
        runs = pad(x, (0, -width % scheme.columns)).unflatten(-1, (-1, scheme.columns))
        return _restored(*quantize_fp8(runs), x.dtype).flatten(-2)[..., :width]
    if isinstance(scheme, FP8Channel):
        return _restored(*quantize_fp8(x), x.dtype)
    if isinstance(scheme, Int8Channel):
        return _restored(*quantize_int8(x), x.dtype)
    return x


def _row_scales(values: Tensor, most: float) -> tuple[Tensor, Tensor]:
    wide = values.float()
    largest = wide.abs().amax(dim=-1) if wide.shape[-1] else wide.new_zeros(wide.shape[:-1])
    return wide, torch.where(largest > 0, largest / most, 1.0)


def _restored(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return (codes.float() * scale[..., None]).to(dtype)
