"""float8_e4m3 by its definition, in float64: values at every edge of rounding, and what a cache holds of them.

    |sign|exponent 4, bias 7|mantissa 3|     exponent 0: mantissa * 2^-9;  0x7F, 0xFF: NaN;  no infinity, 448 is the end

Source: Micikevicius et al. 2022, arXiv 2209.05433.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0
NAN, SIGN = 0x7F, 0x80


def magnitudes() -> Tensor:
    """The finite values from 0 on, float64 [127], by their code."""
    code = torch.arange(NAN)
    exponent, mantissa = code >> 3, (code & 7).double()
    return torch.where(exponent == 0, mantissa / 512, (1 + mantissa / 8) * 2.0 ** (exponent - 7).double())


def edges() -> Tensor:
    """Every value, what lies halfway between two and right beside, the end and beyond, infinities, NaN; float32.

    All are values of float16 and of bfloat16 too.
    """
    held = magnitudes()
    halves = (held[1:] + held[:-1]) / 2
    beyond = torch.tensor([452.0, 464.0, 468.0, 480.0, 512.0, 1e4, 6e4, float("inf")], dtype=torch.float64)
    some = torch.cat((held, halves, halves * (1 - 2**-6), halves * (1 + 2**-6), beyond))
    exact = some.bfloat16().to(torch.float16).float()
    return torch.cat((exact, -exact, torch.tensor([float("nan")])))


def held_of(values: Tensor) -> Tensor:
    """What a cache holds of values, as codes, uint8: the nearest, of two the even one, the last for what is beyond.

    NaN and zero have two codes; they are 0x7F and 0 here.
    """
    held, wide = magnitudes(), values.double()
    halves, size = (held[1:] + held[:-1]) / 2, wide.abs().nan_to_num().clamp(max=LARGEST)
    code = torch.bucketize(size, halves)  # of a value halfway, the one below
    halfway = size == halves[code.clamp(max=len(halves) - 1)]
    code = code + (halfway & (code % 2 == 1))
    return _one_code(torch.where(wide.isnan(), NAN, code | (wide.signbit().long() << 7)))


def codes(cache: Tensor) -> Tensor:
    """The codes of a float8_e4m3 tensor, with one for NaN and one for zero."""
    return _one_code(cache.contiguous().view(torch.uint8).long())


def _one_code(code: Tensor) -> Tensor:
    code = torch.where(code == NAN | SIGN, NAN, code)
    return torch.where(code == SIGN, 0, code).to(torch.uint8)
