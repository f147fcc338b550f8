"""Normalization specs. Reference: `norm_reference.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .spec import Spec, feature


@dataclass(frozen=True, kw_only=True)
class RMSNormSpec(Spec):
    """Root-mean-square normalization over the last axis (Zhang and Sennrich 2019, arXiv 1910.07467).

    weight_offset: added to the stored weight; Gemma stores `weight - 1` and multiplies before rounding.
    """

    op: ClassVar[str] = "rms_norm"
    hidden: int
    eps: float
    dtype: DType
    weight_offset: float = feature(0.0, "rms_norm.weight_offset")


@dataclass(frozen=True, kw_only=True)
class LayerNormSpec(Spec):
    """Layer normalization over the last axis, with weight and bias (Ba et al. 2016, arXiv 1607.06450)."""

    op: ClassVar[str] = "layer_norm"
    hidden: int
    eps: float
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class AddRMSNormSpec(Spec):
    """Composite: residual add followed by `norm`."""

    op: ClassVar[str] = "add_rms_norm"
    norm: RMSNormSpec
