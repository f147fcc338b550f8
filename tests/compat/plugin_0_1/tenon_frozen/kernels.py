"""An RMS norm, and linear layers over transposed weights."""

from __future__ import annotations

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear import Dense, MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.weights import LinearWeights


def rms_norm(spec: RMSNormSpec) -> Kernel | No:
    """run(x, weight) -> y."""
    if spec.dtype != DType.FLOAT32:
        return No(f"float32 only, not {spec.dtype}", alternative="--dtype float32")

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.eps) * weight

    return Kernel(name="frozen.rms_norm", run=run, flags=KernelFlags(batch_invariant=True))


def merged_linear(spec: MergedLinearSpec) -> Kernel | No:
    """run(x, (W^T [in, out], bias)) -> y."""
    if any(not isinstance(part.scheme, Dense) for part in spec.parts):
        return No(f"dense weights only, not {', '.join(scheme.id for scheme in spec.schemes)}")

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> tuple[Tensor, Tensor | None]:
        joined = torch.cat([part["weight"].float() for part in weights.parts])
        return joined.T.contiguous(), None if weights.bias is None else weights.bias.float()

    def run(x: Tensor, prepared: tuple[Tensor, Tensor | None]) -> Tensor:
        y = x @ prepared[0]
        return y if prepared[1] is None else y + prepared[1]

    return Kernel(name="frozen.linear", run=run, prepare=prepare)
