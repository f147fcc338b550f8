"""Feed-forward specs. Reference: `mlp_reference.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .linear import MergedLinearSpec
from .spec import Spec

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


@dataclass(frozen=True, kw_only=True)
class ActivationMulSpec(Spec):
    """y = activation(first half) * second half."""

    op: ClassVar[str] = "activation_mul"
    features: int
    activation: str
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class MLPSpec(Spec):
    """down(activation(up(x))), as in BERT; biases are the linears' own."""

    op: ClassVar[str] = "mlp"
    up: MergedLinearSpec
    down: MergedLinearSpec
    activation: str


@dataclass(frozen=True, kw_only=True)
class GatedMLPSpec(Spec):
    """Composite: down(activation(gate(x)) * up(x)), gate and up merged (Shazeer 2020, arXiv 2002.05202)."""

    op: ClassVar[str] = "gated_mlp"
    gate_up: MergedLinearSpec
    down: MergedLinearSpec
    activation: str
