"""The weights that ops are given: checkpoint tensors grouped per op, before a kernel prepares them.

A part is a dict of tensors whose names its scheme's docstring fixes (`Dense`: weight; `GGUFBlocks`: blocks;
`FP8Channel`: weight, scale; `quantized.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PartTensors = dict[str, "Tensor"]


@dataclass(slots=True, kw_only=True)
class LinearWeights:
    """Of a merged linear: one dict of tensors a part, and the bias [out] of all parts together, or None."""

    parts: tuple[PartTensors, ...]
    bias: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class GatedMLPWeights:
    """Of a gated MLP: the merged gate and up, and down."""

    gate_up: LinearWeights
    down: LinearWeights


@dataclass(slots=True, kw_only=True)
class NormedWeights:
    """Of a norm and the op that reads its rows. norm: [hidden]."""

    norm: Tensor
    then: LinearWeights | GatedMLPWeights


@dataclass(slots=True, kw_only=True)
class MoEWeights:
    """Of an MoE layer. router: [experts, hidden]; gate, up, down: tensors with a leading expert axis."""

    router: Tensor
    gate: PartTensors
    up: PartTensors
    down: PartTensors


@dataclass(slots=True, kw_only=True)
class MLPWeights:
    """Weights of an ungated MLP."""

    up: LinearWeights
    down: LinearWeights


@dataclass(slots=True, kw_only=True)
class NormWeights:
    """Weights of a layer norm, each [hidden]."""

    weight: Tensor
    bias: Tensor
