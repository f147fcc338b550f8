"""A gated MLP with its activation fused: into the first product for very few tokens, else into one launch between the
two, which also quantizes for an FP8 second product. A platform may bring kernels of its own: for many tokens, whose
result is then quantized by a launch, and for few, both products in one.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.mlp import ACTIVATIONS, GatedMLPSpec
from tenon_platforms.ops.quantized import FP8Block
from tenon_platforms.ops.weights import GatedMLPWeights
from tenon_platforms.torch_dtypes import to_torch

from ..compiling import is_rehearsal
from . import mlp
from .float8 import Float8Rows, quantize
from .gemv import gemv
from .linear import LinearPolicy, Weight, multiply
from .linear_table import Gemv
from .tiles import tiles

Prepared = tuple[Weight, Weight]


class ManyRows(Protocol):
    """A first product without a bias, with its activation, where it pays."""

    def pays(self, tokens: int, features: int, *, float8: bool) -> bool:
        """Whether so many rows of so many features each (half of the product's) go through it."""

    def run(self, x: Tensor | Float8Rows, weight: Weight) -> Tensor:
        """[tokens, features] of x [tokens, in], quantized where the weight is, and gate|up [2 * features, in]."""


class FewRows(Protocol):
    """A whole gated MLP of few tokens in one launch, where it pays."""

    def pays(self, tokens: int, gate_up: Weight, down: Weight) -> bool:
        """Whether so many rows go through it; both weights are in FP8, or none."""

    def run(self, x: Tensor | Float8Rows, gate_up: Weight, down: Weight) -> Tensor:
        """[tokens, hidden] of x [tokens, hidden], quantized where the weights are."""


def gated_mlp(
    spec: GatedMLPSpec, policy: LinearPolicy, many: ManyRows | None = None, few: FewRows | None = None
) -> Kernel | No:
    """run(x, weights) -> y, both [tokens, hidden]; weights: prepared gate|up and down. x may be `Float8Rows`.

    few: asked first. many: asked beyond the few tokens whose way ends with the activation. Who brings them knows that
    they compute `spec`.
    """
    if spec.activation not in ACTIVATIONS:
        return No(f"unknown activation {spec.activation!r}")
    for part in (spec.gate_up, spec.down):
        if not part.dtype.is_floating or part.dtype.num_bytes > 4:
            return No(f"multiplies float32 and half types, not {part.dtype}")
    if policy.float8 and any(isinstance(one, FP8Block) for one in (*spec.gate_up.schemes, *spec.down.schemes)):
        return No("FP8 in blocks is multiplied part by part")
    if len(spec.gate_up.parts) != 2 or spec.gate_up.out_features != 2 * spec.down.in_features:
        return No("the first product is not one gate and one up")
    kind, dtype = spec.activation, to_torch(spec.down.dtype)

    def prepare(weights: GatedMLPWeights, uses: tuple[WeightUse, ...]) -> Prepared:
        return policy.prepare(spec.gate_up, weights.gate_up), policy.prepare(spec.down, weights.down)

    def by_many(many: ManyRows, x: Tensor | Float8Rows, gate_up: Weight) -> Tensor:
        float8 = gate_up.scale is not None
        return many.run(quantize(x.contiguous()) if float8 and isinstance(x, Tensor) else x, gate_up)

    def run(x: Tensor | Float8Rows, weights: Prepared) -> Tensor:
        gate_up, down = weights
        tokens, features = (x.values if isinstance(x, Float8Rows) else x).shape[0], gate_up.weight.shape[0] // 2
        float8 = gate_up.scale is not None
        if few is not None and few.pays(tokens, gate_up, down):
            return few.run(quantize(x.contiguous()) if float8 and isinstance(x, Tensor) else x, gate_up, down)
        inner: Tensor | Float8Rows
        pair = None if isinstance(x, Float8Rows) else policy.pairs(tokens, gate_up)
        if pair is not None and isinstance(x, Tensor):
            x = x.contiguous()
            held, scale, bias = gate_up.weight, gate_up.scale, gate_up.bias
            if isinstance(pair, Gemv):
                inner = gemv(x, held, pair, scale=scale, bias=bias, activation=kind)
            else:
                inner = tiles(x, held, pair, scale=scale, bias=bias, activation=kind)
        elif many is not None and many.pays(tokens, features, float8=float8):
            inner = by_many(many, x, gate_up)
        else:
            if many is not None and is_rehearsal():  # where it pays depends on the very number of tokens
                multiply(by_many(many, x, gate_up), down, policy, dtype)
            wide = multiply(x, gate_up, policy, dtype)
            keeps = policy.keeps(tokens, down)
            inner = mlp.multiply(wide, kind) if keeps else mlp.multiply_float8(wide, kind)
        return multiply(inner, down, policy, dtype)

    return Kernel(
        name="activation fused",
        run=run,
        prepare=prepare,
        flags=KernelFlags(batch_invariant=policy.invariant and many is None and few is None),
    )
