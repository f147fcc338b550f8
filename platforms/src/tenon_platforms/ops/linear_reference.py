"""Reference kernel of `linear.py`: what every weight scheme means, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..kernel import Kernel, KernelFlags, WeightUse
from ..torch_dtypes import to_torch
from .linear import Dense, GGUFBlocks, WeightScheme
from .quantized import FP8Static
from .quantized_reference import FP8_MAX, ROUNDING, expand, quantize_fp8, rounded_input

if TYPE_CHECKING:
    from .linear import MergedLinearSpec
    from .table import OpTable
    from .weights import LinearWeights, PartTensors

__all__ = ["FP8_MAX", "dense_weight", "how_served", "merged_linear", "quantize_fp8"]
Product = tuple[Tensor, "Tensor | None", WeightScheme, "Tensor | None"]  # weight, bias, scheme, input scale


def dense_weight(scheme: WeightScheme, tensors: PartTensors, dtype: torch.dtype) -> Tensor:
    """The weight a part's tensors mean, [..., out, in] in `dtype`: the definition of each scheme."""
    if isinstance(scheme, Dense):
        return tensors["weight"].to(dtype)
    if isinstance(scheme, GGUFBlocks):
        from ..formats.gguf_reference import dequantize

        weight: Tensor = dequantize(tensors["blocks"], scheme.type, dtype)
        return weight
    expanded = expand(scheme, tensors, torch.float64 if dtype == torch.float64 else torch.float32)
    if expanded is None:
        raise TypeError(f"no reference for the weight scheme {scheme!r}")
    return expanded.to(dtype)


def merged_linear(spec: MergedLinearSpec, table: OpTable) -> Kernel:
    """run(x, weights) -> y. x: [tokens, in]; y: [tokens, out] in spec.dtype; `weights` are prepared: a few `Product`s.

    Preparing expands every part to spec.dtype and joins neighbours that see the same activations, so that mostly one
    product serves all parts. A part of a scheme that rounds activations sees them rounded (`rounded_input`). With
    `--batch-invariant` every token is its own product of one fixed shape.
    """
    dtype = to_torch(spec.dtype)

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> tuple[Product, ...]:
        parts = [
            dense_weight(part.scheme, tensors, dtype) for part, tensors in zip(spec.parts, weights.parts, strict=True)
        ]
        bias = None if weights.bias is None else weights.bias.to(dtype)
        products, first, column = [], 0, 0
        for end in range(1, len(parts) + 1):
            scheme = spec.schemes[first]
            if end < len(parts) and _sees_the_same(scheme, spec.schemes[end]):
                continue
            weight = parts[first] if end - first == 1 else torch.cat(parts[first:end])
            own = None if bias is None else bias[column : column + len(weight)]
            products.append((weight, own, scheme, weights.parts[first].get("input_scale")))
            first, column = end, column + len(weight)
        return tuple(products)

    def run(x: Tensor, weights: tuple[Product, ...]) -> Tensor:
        found = [linear(rounded_input(scheme, x, scale), weight, bias) for weight, bias, scheme, scale in weights]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)

    def run_invariant(x: Tensor, weights: tuple[Product, ...]) -> Tensor:
        if not len(x):
            return run(x, weights)
        return torch.cat([run(row.clone(), weights) for row in x.split(1)])

    return Kernel(
        name="reference (one row at a time)" if table.batch_invariant else "reference",
        run=run_invariant if table.batch_invariant else run,
        prepare=prepare,
        native=how_served(spec.schemes),
        flags=KernelFlags(batch_invariant=table.batch_invariant),
    )


def how_served(schemes: tuple[WeightScheme, ...]) -> str:
    """What a reference kernel does with weights of these schemes, as `Kernel.native` says it."""
    if all(isinstance(scheme, Dense) for scheme in schemes):
        return "native"
    return "emulated" if all(isinstance(scheme, (Dense, *ROUNDING)) for scheme in schemes) else "dequantize"


def _sees_the_same(one: WeightScheme, other: WeightScheme) -> bool:
    """Whether two parts' activations are the same tensor; a static scale is each part's own."""
    if not isinstance(one, ROUNDING) and not isinstance(other, ROUNDING):
        return True
    return one == other and not isinstance(one, FP8Static)
