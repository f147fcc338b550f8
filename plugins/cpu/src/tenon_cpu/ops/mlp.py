"""The activation of a gated MLP with the product in place. The MLP itself is the contract's composite over this and
the merged linears: one product for gate and up, one down.
"""

from __future__ import annotations

from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.mlp import ActivationMulSpec
from tenon_platforms.ops.mlp_reference import ACTIVATION_FUNCTIONS


def activation_mul(spec: ActivationMulSpec) -> Kernel | No:
    """run(x) -> y, [tokens, features] of [tokens, 2 * features]."""
    activation = ACTIVATION_FUNCTIONS.get(spec.activation)
    if activation is None:
        return No(f"unknown activation {spec.activation!r}")
    width = spec.features

    def run(x: Tensor) -> Tensor:
        gate, up = x.split(width, dim=-1)
        return activation(gate).mul_(up)

    return Kernel(name="activation, product in place", run=run, flags=KernelFlags(batch_invariant=True))
