"""Running error analysis: a value in float64 and a bound of what float arithmetic may have done to it.

Every bound is a formula of lengths, magnitudes and the types' roundings (Higham, Accuracy and Stability of Numerical
Algorithms, sections 2.2, 3.1 and 3.3), never of who computes. Sums are taken to be kept in float32, in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.torch_dtypes import to_torch

U32 = 2.0**-24  # rounding of float32, in which sums are kept
SUM_FACTOR = 4.0  # of sqrt(length): roundings are taken as independent, four standard deviations
FUNCTION_ULPS = 8.0  # of exp, tanh, erf, rsqrt as libraries approximate them


def unit(dtype: DType) -> float:
    """The relative error of rounding to `dtype`, where the device may cut off instead of rounding to nearest."""
    return float(torch.finfo(to_torch(dtype)).eps)


def tiny(dtype: DType) -> float:
    """What flushing to zero may lose."""
    return float(torch.finfo(to_torch(dtype)).tiny)


def largest(dtype: DType) -> float:
    """The largest finite value."""
    return float(torch.finfo(to_torch(dtype)).max)


def sum_error(length: int) -> float:
    """Relative to the operands' norms, the error of a float32 sum of `length` products."""
    return SUM_FACTOR * U32 * math.sqrt(length + 8)


@dataclass(frozen=True, slots=True)
class Bounded:
    """float64 value and bound, of one shape."""

    value: Tensor
    error: Tensor

    @classmethod
    def exact(cls, value: Tensor) -> Bounded:
        """An input as it was given."""
        wide = value.double()
        return cls(wide, torch.zeros_like(wide))

    def rounded(self, relative: float, times: float = 1.0) -> Bounded:
        """After `times` roundings of this relative size."""
        return Bounded(self.value, self.error + times * relative * (self.value.abs() + self.error))

    def scaled(self, factor: Tensor | float) -> Bounded:
        """Times an exact factor."""
        size = factor.abs() if isinstance(factor, Tensor) else abs(factor)
        return Bounded(self.value * factor, self.error * size)

    def plus(self, other: Bounded) -> Bounded:
        """The sum; its rounding is the caller's to add."""
        return Bounded(self.value + other.value, self.error + other.error)

    def times(self, other: Bounded) -> Bounded:
        """The elementwise product."""
        error = self.error * other.value.abs() + other.error * self.value.abs() + self.error * other.error
        return Bounded(self.value * other.value, error)

    def __getitem__(self, index: object) -> Bounded:
        return Bounded(self.value[index], self.error[index])  # type: ignore[index]


def matmul(x: Bounded, weight: Tensor, weight_error: float) -> Bounded:
    """x W^T for W [out, in] in float64; weight_error: relative rounding of W's elements before the product."""
    size = weight.abs()
    value = x.value @ weight.T
    norms = (x.value.norm(dim=-1) + x.error.norm(dim=-1))[:, None] * weight.norm(dim=-1)[None]
    error = x.error @ size.T * (1 + weight_error) + weight_error * (x.value.abs() @ size.T)
    return Bounded(value, error + sum_error(weight.shape[1]) * norms)
