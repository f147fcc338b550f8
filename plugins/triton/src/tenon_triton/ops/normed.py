"""A norm and the product that reads its rows, in as few launches as the product's way allows.

What a platform brings for few tokens comes first. For so few as the table names, the product adds and normalizes the
rows that it reads. Beyond, where it takes FP8 rows, the norm's launch quantizes them; else the parts run one after the
other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.quantized import FP8Block
from tenon_platforms.ops.weights import NormedWeights
from tenon_platforms.torch_dtypes import to_torch

from .gated_mlp import FewRows, ManyRows, gated_mlp
from .linear import LinearPolicy, Weight, merged_linear, multiply
from .linear_table import NormedGemv, NormedWay
from .norm import add_rms_norm, add_rms_norm_float8, contiguous_rows
from .normed_gemv import normed_gemv
from .prologue import AddNorm, Gain, gain_of
from .tiles import tiles


class Prepared(NamedTuple):
    """then: what `then` prepared."""

    norm: Gain
    then: Any


def add_rms_norm_then(
    spec: AddRMSNormThenSpec, policy: LinearPolicy, many: ManyRows | None = None, few: FewRows | None = None
) -> Kernel | No:
    """run(x, residual, weights) -> (y, sum), as the reference's; weights: `Prepared`. many, few: of `gated_mlp`."""
    norm: RMSNormSpec = spec.norm.norm
    gated = spec.then if isinstance(spec.then, GatedMLPSpec) else None
    product = spec.then.gate_up if isinstance(spec.then, GatedMLPSpec) else spec.then
    if any(isinstance(scheme, FP8Block) for scheme in product.schemes):
        return No("FP8 in blocks is multiplied by a kernel of its own", alternative="its parts")
    if not policy.is_float8(product) and not policy.table.normed:
        return No("the product reads rows as the norm leaves them", alternative="its parts")
    plain = add_rms_norm(spec.norm)
    then = merged_linear(product, policy) if gated is None else gated_mlp(gated, policy, many, few)
    for part in (plain, then):
        if isinstance(part, No):
            return part
    assert isinstance(plain, Kernel) and isinstance(then, Kernel)
    run_plain, run_then, dtype = plain.run, then.run, to_torch(norm.dtype)
    activation = None if gated is None else gated.activation

    def prepare(weights: NormedWeights, uses: tuple[WeightUse, ...]) -> Prepared:
        return Prepared(gain_of(weights.norm, norm.weight_offset), then.bind(weights.then, *uses))

    def run(x: Tensor, residual: Tensor, weights: Prepared) -> tuple[Tensor, Tensor]:
        gain, held = weights
        first: Weight = held if gated is None else held[0]
        is_one = gated is not None and few is not None and few.pays(x.shape[0], *held)
        way = None if is_one else policy.normed(x.shape[0], first, paired=gated is not None)
        if way is not None:
            x, residual = contiguous_rows(x), contiguous_rows(residual)
            total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            added = AddNorm(residual=residual, total=total, gain=gain, eps=norm.eps)
            y = normed_product(x, first, way, added, activation)
            return y if gated is None else multiply(y, held[1], policy, dtype), total
        if first.scale is None or (policy.keeps(x.shape[0], first) and not is_one):
            rows, total = run_plain(x, residual, gain.stored)
        else:
            rows, total = add_rms_norm_float8(norm, x, residual, gain.stored)
        return run_then(rows, held), total

    return Kernel(
        name=f"norm, then {then.name}",
        run=run,
        prepare=prepare,
        native=then.native,
        flags=KernelFlags(batch_invariant=plain.flags.batch_invariant and then.flags.batch_invariant),
    )


def normed_product(x: Tensor, weight: Weight, way: NormedWay, norm: AddNorm, activation: str | None) -> Tensor:
    """y [tokens, out] of the norm of x and its residual, in one launch; [tokens, out / 2] with an activation."""
    held, scale, bias = weight.weight, weight.scale, weight.bias
    if isinstance(way, NormedGemv):
        return normed_gemv(x, held, way, norm, scale=scale, bias=bias, activation=activation)
    return tiles(x, held, way, scale=scale, bias=bias, activation=activation, norm=norm)
