"""Merged linears on the CPU: every part in one weight, one product for all.

A prepared weight is a callable of its kind: `HalfWeight` (float16 kept, float32 summed), `Int4Weight`, or here
`FullWeight` (the linear's own type). Which one is chosen by what the checkpoint holds and two options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear import Dense, GGUFBlocks, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.weights import LinearWeights, PartTensors
from tenon_platforms.torch_dtypes import to_torch

from ..isa import CPU
from . import half_weights, int4_weights
from .half_weights import HalfWeight
from .int4_weights import Int4Weight

TRANSPOSED_FROM, TRANSPOSED_TO = 2, 64  # rows for which W x^T is the faster order of a float32 product


@dataclass(frozen=True, slots=True)
class FullWeight:
    """A [out, in] weight in the type it is computed in."""

    weight: Tensor
    bias: Tensor | None
    transposes: bool

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, out] of [tokens, in]."""
        if self.transposes and TRANSPOSED_FROM <= x.shape[0] <= TRANSPOSED_TO:
            product = torch.mm(self.weight, x.t()).t().contiguous()
            return product if self.bias is None else product.add_(self.bias)
        return linear(x, self.weight, self.bias)


Product = HalfWeight | Int4Weight | FullWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPolicy:
    """How weights are kept. weights, gguf: the platform's options of these names."""

    cpu: CPU
    weights: str = "auto"
    gguf: str = "auto"

    def computes_in(self, dtype: DType) -> DType:
        """The type a product is computed in: half types without instructions of their own go through float32."""
        native = {DType.BFLOAT16: self.cpu.has_bf16, DType.FLOAT16: self.cpu.has_fp16}.get(dtype, True)
        return dtype if native else DType.FLOAT32

    def stays_int4(self, spec: MergedLinearSpec) -> bool:
        """Whether every part is a 4-bit block type that is to be computed on as it is."""
        return self.gguf == "inplace" and all(
            isinstance(part.scheme, GGUFBlocks)
            and int4_weights.refuses(part.scheme.type, part.out_features, spec.in_features) is None
            for part in spec.parts
        )

    def describe(self, spec: MergedLinearSpec) -> str:
        """The kernel's name: how the weights of `spec` are kept, as far as that is known before they are seen."""
        compute = self.computes_in(spec.dtype)
        if compute != DType.FLOAT32 or self.weights == "float32" or not half_weights.is_available():
            return f"{compute} weights"
        blocks = self.gguf == "auto" and all(isinstance(scheme, GGUFBlocks) for scheme in spec.schemes)
        stored = all(isinstance(scheme, Dense) and scheme.stored.num_bytes == 2 for scheme in spec.schemes)
        half = blocks or stored or self.weights == "float16"
        return "float16 weights, float32 sums" if half else "float32 weights"

    def keep(self, schemes: tuple[WeightScheme, ...], weight: Tensor, bias: Tensor | None, dtype: DType) -> Product:
        """The product of an expanded weight [out, in], which may be given in any float type."""
        compute = self.computes_in(dtype)
        if compute == DType.FLOAT32 and self._is_half(schemes, weight):
            return half_weights.pack(weight, bias)
        kind = to_torch(compute)
        return FullWeight(
            weight.to(kind).contiguous(), None if bias is None else bias.to(kind), compute == DType.FLOAT32
        )

    def _is_half(self, schemes: tuple[WeightScheme, ...], weight: Tensor) -> bool:
        if self.weights == "float32" or not half_weights.is_available():
            return False
        if self.weights == "float16" or (self.gguf == "auto" and all(isinstance(s, GGUFBlocks) for s in schemes)):
            return half_weights.fits(weight)
        return half_weights.rounding(weight) <= half_weights.EXACT

    def load_type(self, scheme: WeightScheme, dtype: DType) -> torch.dtype:
        """The type to expand a stored weight to before `keep`: its own where it is dense, so that nothing is lost."""
        if isinstance(scheme, Dense) and scheme.stored.is_floating:
            return to_torch(scheme.stored)
        return to_torch(self.computes_in(dtype))


def merged_linear(spec: MergedLinearSpec, policy: WeightPolicy) -> Kernel | No:
    """run(x, weight) -> y, as the reference's; `weight` is a prepared `Product`."""
    if not spec.dtype.is_floating or spec.dtype == DType.FLOAT64:
        return No(f"no product in {spec.dtype}")
    quantized = not all(isinstance(scheme, Dense) for scheme in spec.schemes)
    if policy.stays_int4(spec):
        return Kernel(
            name="int4 packed", run=_runner(spec.dtype, None), prepare=_prepare_int4(spec), flags=KernelFlags()
        )
    return Kernel(
        name=policy.describe(spec),
        run=_runner(spec.dtype, policy.computes_in(spec.dtype)),
        prepare=_prepare(spec, policy),
        native="dequantize" if quantized else "native",
    )


def join(parts: list[Tensor]) -> Tensor:
    """Parts along the output axis, in the widest of their types."""
    if len(parts) == 1:
        return parts[0]
    wide = parts[0].dtype
    for part in parts[1:]:
        wide = torch.promote_types(wide, part.dtype)
    return torch.cat([part.to(wide) for part in parts])


def _prepare(spec: MergedLinearSpec, policy: WeightPolicy) -> Callable[[LinearWeights, tuple[WeightUse, ...]], Product]:
    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> Product:
        parts = [
            dense_weight(part.scheme, tensors, policy.load_type(part.scheme, spec.dtype))
            for part, tensors in zip(spec.parts, weights.parts, strict=True)
        ]
        return policy.keep(spec.schemes, join(parts), weights.bias, spec.dtype)

    return prepare


def _prepare_int4(spec: MergedLinearSpec) -> Callable[[LinearWeights, tuple[WeightUse, ...]], Product]:
    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> Product:
        parts: list[tuple[str, Tensor]] = []
        for part, tensors in zip(spec.parts, weights.parts, strict=True):
            parts.append((_gguf_type(part.scheme), _blocks(tensors)))
        return int4_weights.pack(parts, weights.bias)

    return prepare


def _gguf_type(scheme: WeightScheme) -> str:
    assert isinstance(scheme, GGUFBlocks)
    return scheme.type


def _blocks(tensors: PartTensors) -> Tensor:
    return tensors["blocks"]


def _runner(dtype: DType, compute: DType | None) -> Callable[[Tensor, Product], Tensor]:
    """compute None: the product takes any float type and gives float32."""
    outer = to_torch(dtype)
    if compute == dtype or (compute is None and dtype == DType.FLOAT32):

        def run(x: Tensor, weight: Product) -> Tensor:
            return weight(x)

        return run

    def run_cast(x: Tensor, weight: Product) -> Tensor:
        return weight(x.float()).to(outer)

    return run_cast
