"""Mixture-of-experts spec. Reference: `moe_reference.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .linear import WeightScheme
from .spec import Spec, feature


@dataclass(frozen=True, kw_only=True)
class MoESpec(Spec):
    """Every token goes through its top_k experts, gated MLPs, weighted by the router (Fedus 2021, Jiang 2024).

    renormalize: the chosen weights are divided by their sum. scoring: "softmax" over all experts before choosing.
    gate, up, down: schemes of the stacked expert weights. Dynamic loads: rows past the batch's valid tokens count
    nowhere.
    """

    op: ClassVar[str] = "moe_layer"
    hidden: int
    intermediate: int
    num_experts: int
    top_k: int
    renormalize: bool
    activation: str
    gate: WeightScheme
    up: WeightScheme
    down: WeightScheme
    dtype: DType
    scoring: str = feature("softmax", "moe.scoring")
    shared_intermediate: int = feature(0, "moe.shared_expert")
