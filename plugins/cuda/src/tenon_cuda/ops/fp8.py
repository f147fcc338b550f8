"""W8A8 in 8-bit floats, of a checkpoint or made at load: one scale a channel of the weight; activations one a token.

    y[t, o] = scale_x[t] * scale_w[o] * sum_i q_x[t, i] q_w[o, i]          e4m3, largest value 448, float32 sums

A checkpoint's static scale for all activations is coarser than one a token, and is not used. Made at load, the head
stays as it is: its error is a logit's. Products run through `torch._scaled_mm` with row-wise scales, on Hopper
kernels of cuBLAS (profiled: nvjet_..._ovscale).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear import Dense, FP8Channel, MergedLinearSpec
from tenon_platforms.ops.quantized import FP8Static
from tenon_platforms.ops.weights import LinearWeights

from .linear import joined_weight

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
GRAIN = 16  # features that the product wants in whole multiples
HEAD = "head"
STORED = (FP8Channel, FP8Static)

QuantizeRows = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class FP8Weight:
    """weight: e4m3 [out, in]; scale: float32 [1, out]; bias: [out]."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.weight.nbytes + self.scale.nbytes + (0 if self.bias is None else self.bias.nbytes)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 [rows, features], float32 scale [rows, 1]) of x [rows, features]; scale = largest magnitude / 448, or 1."""
    wide = x.float()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    scale = torch.where(largest > 0, largest / LARGEST, 1.0)
    return (wide / scale).clamp_(-LARGEST, LARGEST).to(FP8), scale


def quantize_weight(weight: Tensor, bias: Tensor | None) -> FP8Weight:
    """A [out, in] weight with one scale a channel."""
    quantized, scale = quantize_rows(weight)
    return FP8Weight(weight=quantized, scale=scale.t().contiguous(), bias=bias)


def stored_weight(weights: LinearWeights, bias: Tensor | None) -> FP8Weight:
    """A checkpoint's parts, one under the other."""
    kept = torch.cat([part["weight"].view(torch.uint8) for part in weights.parts])
    scale = torch.cat([part["scale"].float() for part in weights.parts])
    return FP8Weight(weight=kept.view(FP8), scale=scale[None].contiguous(), bias=bias)


def w8a8(spec: MergedLinearSpec, quantize: QuantizeRows = quantize_rows, *, online: bool = True) -> Kernel | No:
    """run(x, weights) -> y. quantize: of activations; another one where a faster kernel does the same.

    online: dense weights are quantized when they are loaded.
    """
    stored = all(isinstance(scheme, STORED) for scheme in spec.schemes)
    if not stored:
        if any(part.name == HEAD for part in spec.parts):
            return No("the head is not quantized")
        if not online or not all(isinstance(scheme, Dense) for scheme in spec.schemes):
            return No("multiplies weights in FP8 with a scale a channel" + (" and quantizes dense ones" * online))
    if spec.dtype != DType.BFLOAT16:
        return No(f"row-wise products come out in bfloat16, not {spec.dtype}", "--dtype bfloat16")
    if spec.in_features % GRAIN or spec.out_features % GRAIN:
        return No(f"features must be multiples of {GRAIN}, not {spec.in_features} and {spec.out_features}")

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> FP8Weight:
        if not stored:
            return quantize_weight(*joined_weight(spec, weights))
        return stored_weight(weights, None if weights.bias is None else weights.bias.to(torch.bfloat16))

    def run(x: Tensor, weights: FP8Weight) -> Tensor:
        quantized, scale = quantize(x)
        product: Tensor = torch._scaled_mm(
            quantized,
            weights.weight.t(),
            scale_a=scale,
            scale_b=weights.scale,
            bias=weights.bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return product

    name = "w8a8" if stored else "w8a8, quantized at load"
    return Kernel(name=name, run=run, prepare=prepare, native="native", flags=KernelFlags())
