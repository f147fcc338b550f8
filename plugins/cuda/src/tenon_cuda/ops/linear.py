"""Merged linears through cuBLAS: every part in one weight of the model's type, one product for all.

Quantized weights are expanded when they are loaded. cuBLAS picks its kernel by the number of rows, so a row's bits may
depend on how many there are: not batch-invariant.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear import Dense, FP8Channel, GGUFBlocks, MergedLinearSpec
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel, IntGroups
from tenon_platforms.ops.weights import LinearWeights
from tenon_platforms.torch_dtypes import to_torch

EXPANDED = (GGUFBlocks, FP8Channel, FP8Static, FP8Block, Int8Channel, IntGroups)
Prepared = tuple[Tensor, Tensor | None]  # weight [out, in], bias [out]


def joined_weight(spec: MergedLinearSpec, weights: LinearWeights) -> Prepared:
    """All parts expanded to spec.dtype, one under the other, and the bias."""
    dtype = to_torch(spec.dtype)
    parts = [dense_weight(part.scheme, tensors, dtype) for part, tensors in zip(spec.parts, weights.parts, strict=True)]
    bias = None if weights.bias is None else weights.bias.to(dtype)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)), bias


def cublas(spec: MergedLinearSpec) -> Kernel | No:
    """run(x, weights) -> y, as the reference's docstring says."""
    foreign = [scheme.id for scheme in spec.schemes if not isinstance(scheme, (Dense, *EXPANDED))]
    if foreign:
        return No(f"knows no weights of {foreign[0]}")

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> Prepared:
        return joined_weight(spec, weights)

    def run(x: Tensor, weights: Prepared) -> Tensor:
        return linear(x, *weights)

    dense = all(isinstance(scheme, Dense) for scheme in spec.schemes)
    return Kernel(
        name="cublas" if dense else "cublas, expanded at load",
        run=run,
        prepare=prepare,
        native="native" if dense else "dequantize",
        flags=KernelFlags(),
    )
