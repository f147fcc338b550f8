"""float8_e4m3 by its definition, in float64: values at every edge of rounding, and what a cache holds of them.

|sign|exponent 4, bias 7|mantissa 3|     exponent 0: mantissa * 2^-9;  0x7F and 0xFF: NaN;  no infinity, 448 is the end
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0


def magnitudes() -> Tensor:
    """The finite values from 0 on, float64 [127], by their code."""
    code = torch.arange(127)
    exponent, mantissa = code >> 3, (code & 7).double()
    return torch.where(exponent == 0, mantissa / 512, (1 + mantissa / 8) * 2.0 ** (exponent - 7).double())


def edges() -> Tensor:
    """Every value, what lies halfway between two and right beside, the end and beyond, infinities, NaN; float32."""
    held = magnitudes()
    halves = (held[1:] + held[:-1]) / 2
    beyond = torch.tensor([449.0, 463.0, 464.0, 465.0, 480.0, 1e4, 6e4, float("inf")], dtype=torch.float64)
    some = torch.cat((held, halves, halves * (1 - 2**-7), halves * (1 + 2**-7), beyond))
    return torch.cat((some, -some, torch.tensor([float("nan")]))).float()


def held_of(values: Tensor) -> Tensor:
    """What a cache holds of values, as codes, uint8: the nearest, of two the even one, the last for what is beyond.

    NaN has two codes; it is 0x7F here.
    """
    held, wide = magnitudes(), values.double()
    size = wide.abs().clamp(max=LARGEST)
    distance = (size[..., None] - held).abs()
    near = distance == distance.amin(-1, keepdim=True)
    even = near & (torch.arange(127) % 2 == 0)
    code = torch.where(even.any(-1), even.int().argmax(-1), near.int().argmax(-1))
    code = torch.where(wide.isnan(), 127, code | (wide.signbit().long() << 7))
    return code.to(torch.uint8)


def codes(cache: Tensor) -> Tensor:
    """The codes of a float8_e4m3 tensor, with one for NaN."""
    found = cache.view(torch.uint8)
    return torch.where(found == 255, 127, found.long()).to(torch.uint8)
