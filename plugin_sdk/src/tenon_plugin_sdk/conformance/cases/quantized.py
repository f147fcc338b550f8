"""Quantized weights for the cases, in the canonical form of every scheme."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tenon_platforms.ops.linear import WeightScheme
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel, IntGroups
from tenon_platforms.ops.quantized_reference import FP8_MAX
from tenon_platforms.ops.weights import PartTensors

FP8 = torch.float8_e4m3fn
STATIC_SCALE = 2.0**-6  # of activations; a power of two, as in the draws


def stored(scheme: WeightScheme, shape: tuple[int, ...], random: torch.Generator) -> PartTensors:
    """One part's tensors of shape [..., out, in], about as large as a dense weight's."""
    lead, rows, columns = shape[:-2], shape[-2], shape[-1]
    size = columns**-0.5

    def scales(*extents: int) -> Tensor:
        made: Tensor = (torch.rand((*lead, *extents), generator=random) * 0.9 + 0.1) * size
        return made

    if isinstance(scheme, IntGroups):
        return _groups(scheme, lead, rows, columns, scales, random)
    if isinstance(scheme, Int8Channel):
        codes = torch.randint(-127, 128, shape, generator=random, dtype=torch.int8)
        return {"weight": codes, "scale": scales(rows) / 64}
    held = {"weight": (torch.randn(shape, generator=random) * 64).clamp(-FP8_MAX, FP8_MAX).to(FP8)}
    if isinstance(scheme, FP8Block):
        return {**held, "scale": scales(-(-rows // scheme.rows), -(-columns // scheme.columns)) / 64}
    held["scale"] = scales(rows) / 64
    if isinstance(scheme, FP8Static):
        held["input_scale"] = torch.full((*lead, 1), STATIC_SCALE)
    return held


def _groups(
    scheme: IntGroups,
    lead: tuple[int, ...],
    rows: int,
    columns: int,
    scales: Callable[..., Tensor],
    random: torch.Generator,
) -> PartTensors:
    count, most = scheme.num_groups(columns), 2**scheme.bits
    held = {
        "weight": torch.randint(0, 256, (*lead, rows, columns * scheme.bits // 8), generator=random, dtype=torch.uint8),
        "scale": (scales(rows, count) / (most // 4)).half(),
    }
    if scheme.zeros:
        held["zero"] = torch.randint(0, most, (*lead, rows, count), generator=random, dtype=torch.uint8)
    if scheme.ordered:
        order = torch.randperm(columns, generator=random)
        held["group"] = (order // (scheme.group_size or columns)).int().expand(*lead, columns).contiguous()
    return held
