"""RMS norms in float32 in few torch calls; where rounding between steps matters (half types), the reference serves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec

FLAGS = KernelFlags(batch_invariant=True)


def rms_norm(spec: RMSNormSpec) -> Kernel | No:
    """run(x, weight) -> y; the weight is prepared with its offset added."""
    if spec.dtype != DType.FLOAT32:
        return No(f"rounds in float32 only, not as {spec.dtype} does")
    normalize = _normalizer(spec)
    return Kernel(name="vector_norm", run=normalize, prepare=_prepare(spec), flags=FLAGS)


def add_rms_norm(spec: AddRMSNormSpec) -> Kernel | No:
    """run(x, residual, weight) -> (y, x + residual)."""
    if spec.norm.dtype != DType.FLOAT32:
        return No(f"rounds in float32 only, not as {spec.norm.dtype} does")
    normalize = _normalizer(spec.norm)

    def run(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return normalize(total, weight), total

    return Kernel(name="add + vector_norm", run=run, prepare=_prepare(spec.norm), flags=FLAGS)


def _normalizer(spec: RMSNormSpec) -> Callable[[Tensor, Tensor], Tensor]:
    epsilon = torch.tensor([spec.eps])
    share = 1.0 / spec.hidden

    def normalize(x: Tensor, weight: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(epsilon, length, length, value=share).rsqrt_()  # 1 / sqrt(mean square + eps)
        return (x * scale).mul_(weight)

    return normalize


def _prepare(spec: RMSNormSpec) -> Callable[[Tensor, tuple[WeightUse, ...]], Tensor]:
    def prepare(weight: Tensor, uses: tuple[WeightUse, ...]) -> Tensor:
        return weight + spec.weight_offset if spec.weight_offset else weight

    return prepare
