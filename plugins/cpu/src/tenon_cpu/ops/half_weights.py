"""Weights kept in float16 and multiplied with float32 activations, summed in float32: FBGEMM's packed float16 product.

Halves the bytes that a decode step reads and is faster than a float32 product at every number of rows measured. Exact
where every weight is a float16, nearly so for bfloat16 (its 8 bits fit; what lies below 2^-24 is lost): `rounding`
says how much. Needs x86 with AVX2; elsewhere `is_available` is false.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

EXACT = 2.0**-20  # relative rounding of a row at or below a float32 sum's own
LARGEST = 65504.0


@cache
def is_available() -> bool:
    """Whether this torch and CPU run the product; tried once."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    try:
        packed = torch.ops.quantized.linear_prepack_fp16(torch.ones(8, 8), None)
        found = torch.ops.quantized.linear_dynamic_fp16(torch.ones(1, 8), packed)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return bool((found == 8).all())


@dataclass(frozen=True, slots=True)
class HalfWeight:
    """A packed [out, in] weight with its bias. nbytes: of memory held."""

    packed: Any
    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [tokens, out] of float32 [tokens, in]."""
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return product


def pack(weight: Tensor, bias: Tensor | None) -> HalfWeight:
    """Round a float weight [out, in] to float16 and pack it."""
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
    return HalfWeight(packed, 2 * weight.numel())


def fits(weight: Tensor) -> bool:
    """Whether no value overflows; false where one is not a number."""
    least, most = weight.aminmax()
    return bool(least >= -LARGEST) and bool(most <= LARGEST)


def rounding(weight: Tensor) -> float:
    """The greatest relative error of a row that float16 makes; infinite where it does not fit."""
    if weight.dtype == torch.float16:
        return 0.0
    if not fits(weight):
        return float("inf")
    worst = 0.0
    for rows in weight.split(4096):
        wide = rows.float()
        lost = (wide - wide.half().float()).norm(dim=-1)
        worst = max(worst, float((lost / wide.norm(dim=-1).clamp_min(1e-30)).max()))
    return worst
