"""A norm and the product that reads its rows: where the product takes FP8 rows, the norm's launch quantizes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.quantized import FP8Block
from tenon_platforms.ops.weights import NormedWeights

from .gated_mlp import gated_mlp
from .linear import LinearPolicy, Weight, merged_linear
from .norm import add_rms_norm, add_rms_norm_float8

Prepared = tuple[Tensor, Any]


def add_rms_norm_then(spec: AddRMSNormThenSpec, policy: LinearPolicy) -> Kernel | No:
    """run(x, residual, weights) -> (y, sum), as the reference's; weights: the norm's, and those `then` prepared."""
    norm: RMSNormSpec = spec.norm.norm
    product = spec.then.gate_up if isinstance(spec.then, GatedMLPSpec) else spec.then
    if not policy.is_float8(product) or any(isinstance(scheme, FP8Block) for scheme in product.schemes):
        return No("the product reads rows as the norm leaves them", alternative="its parts")
    plain = add_rms_norm(spec.norm)
    then = gated_mlp(spec.then, policy) if isinstance(spec.then, GatedMLPSpec) else merged_linear(spec.then, policy)
    for part in (plain, then):
        if isinstance(part, No):
            return part
    assert isinstance(plain, Kernel) and isinstance(then, Kernel)
    run_plain, run_then = plain.run, then.run

    def prepare(weights: NormedWeights, uses: tuple[WeightUse, ...]) -> Prepared:
        return weights.norm, then.bind(weights.then, *uses)

    def run(x: Tensor, residual: Tensor, weights: Prepared) -> tuple[Tensor, Tensor]:
        gain, held = weights
        first: Weight = held[0] if isinstance(held, tuple) else held
        if policy.keeps(x.shape[0], first):
            rows, total = run_plain(x, residual, gain)
        else:
            rows, total = add_rms_norm_float8(norm, x, residual, gain)
        return run_then(rows, held), total

    return Kernel(
        name=f"norm, then {then.name}",
        run=run,
        prepare=prepare,
        native=then.native,
        flags=KernelFlags(batch_invariant=plain.flags.batch_invariant and then.flags.batch_invariant),
    )
