"""Reference kernel of `linear.py`: what every weight scheme means, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..kernel import Kernel, KernelFlags, WeightUse
from ..torch_dtypes import to_torch
from .linear import Dense, FP8Channel, GGUFBlocks, WeightScheme

FP8_MAX = 448.0  # the largest finite float8_e4m3fn

if TYPE_CHECKING:
    from .linear import MergedLinearSpec
    from .table import OpTable
    from .weights import LinearWeights, PartTensors


def dense_weight(scheme: WeightScheme, tensors: PartTensors, dtype: torch.dtype) -> Tensor:
    """The weight a part's tensors mean, [..., out, in] in `dtype`: the definition of each scheme."""
    if isinstance(scheme, Dense):
        return tensors["weight"].to(dtype)
    if isinstance(scheme, GGUFBlocks):
        from ..formats.gguf_reference import dequantize

        weight: Tensor = dequantize(tensors["blocks"], scheme.type, dtype)
        return weight
    if isinstance(scheme, FP8Channel):
        return (tensors["weight"].float() * tensors["scale"].float()[..., None]).to(dtype)
    raise TypeError(f"no reference for the weight scheme {scheme!r}")


def quantize_fp8(values: Tensor) -> tuple[Tensor, Tensor]:
    """(float8_e4m3fn like values, float32 [...]): every row with its own scale, max(|row|) / 448, 1 for zeros."""
    wide = values.float()
    largest = wide.abs().amax(dim=-1) if wide.shape[-1] else wide.new_zeros(wide.shape[:-1])
    scale = torch.where(largest > 0, largest / FP8_MAX, 1.0)
    return (wide / scale[..., None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def merged_linear(spec: MergedLinearSpec, table: OpTable) -> Kernel:
    """run(x, weights) -> y. x: [tokens, in]; y: [tokens, out] in spec.dtype; `weights` are prepared: (W [out, in], b).

    Preparing expands every part to spec.dtype and joins them, so that one product serves all parts. With
    `--batch-invariant` every token is its own product of one fixed shape. Where a part is `FP8Channel` all parts see
    activations rounded to FP8.
    """
    dtype = to_torch(spec.dtype)

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> tuple[Tensor, Tensor | None]:
        parts = [
            dense_weight(part.scheme, tensors, dtype) for part, tensors in zip(spec.parts, weights.parts, strict=True)
        ]
        bias = None if weights.bias is None else weights.bias.to(dtype)
        return (parts[0] if len(parts) == 1 else torch.cat(parts)), bias

    quantizes = any(isinstance(scheme, FP8Channel) for scheme in spec.schemes)

    def run(x: Tensor, weights: tuple[Tensor, Tensor | None]) -> Tensor:
        if quantizes:
            values, scale = quantize_fp8(x)
            x = (values.float() * scale[:, None]).to(dtype)
        return linear(x, weights[0], weights[1])

    def run_invariant(x: Tensor, weights: tuple[Tensor, Tensor | None]) -> Tensor:
        if not len(x):
            return run(x, weights)
        return torch.cat([run(row.clone(), weights) for row in x.split(1)])

    native = "native" if all(isinstance(scheme, Dense) for scheme in spec.schemes) else "dequantize"
    return Kernel(
        name="reference (one row at a time)" if table.batch_invariant else "reference",
        run=run_invariant if table.batch_invariant else run,
        prepare=prepare,
        native=native,
        flags=KernelFlags(batch_invariant=table.batch_invariant),
    )
