"""Reference kernels of `norm.py`, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernel import Kernel, KernelFlags

if TYPE_CHECKING:
    from .norm import AddRMSNormSpec, LayerNormSpec, RMSNormSpec
    from .table import OpTable
    from .weights import NormWeights


def rms_norm(spec: RMSNormSpec, table: OpTable) -> Kernel:
    """run(x, weight) -> y.

    x: [..., hidden] in spec.dtype; weight: [hidden] in spec.dtype; y like x.
    y = x / sqrt(mean(x^2) + eps) * (weight + offset), the mean and quotient in float32. With an offset the product is
    rounded once at the end; without, the quotient is rounded to spec.dtype first, as Llama and Gemma checkpoints
    were trained.
    """
    eps, offset = spec.eps, spec.weight_offset

    def run(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        if offset:
            return (scaled * (weight.float() + offset)).to(x.dtype)
        return weight * scaled.to(x.dtype)

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))


def layer_norm(spec: LayerNormSpec, table: OpTable) -> Kernel:
    """run(x, weights) -> y.

    x: [..., hidden] in spec.dtype; weights: NormWeights, each [hidden] in spec.dtype; y like x.
    y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, in float32, rounded once at the end.
    """
    eps = spec.eps

    def run(x: Tensor, weights: NormWeights) -> Tensor:
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return (scaled * weights.weight.float() + weights.bias.float()).to(x.dtype)

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))


def add_rms_norm(spec: AddRMSNormSpec, table: OpTable) -> Kernel:
    """run(x, residual, weight) -> (y, sum): sum = x + residual in their dtype, y = norm(sum). All [tokens, hidden]."""
    norm = table.choose(spec.norm)

    def run(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm.run(total, weight), total

    return Kernel(name="add + rms_norm", run=run, prepare=norm.prepare, flags=norm.flags)
