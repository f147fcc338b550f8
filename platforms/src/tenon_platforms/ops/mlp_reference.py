"""Reference kernels of `mlp.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import relu

from ..kernel import Kernel, KernelFlags, WeightUse
from .mlp import ActivationMulSpec

if TYPE_CHECKING:
    from .mlp import GatedMLPSpec, MLPSpec
    from .table import OpTable
    from .weights import GatedMLPWeights, MLPWeights


# Of exp, erf and tanh alone, which torch computes alike at every place of a tensor. Its fused activations take another
# function for the last few elements, so that a row's bits would hang on the rows around it.


def _silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)), in float32."""
    wide = x.float()
    return (wide / (-wide).exp_().add_(1)).to(x.dtype)


def _gelu(x: Tensor) -> Tensor:
    """x / 2 (1 + erf(x / sqrt(2))), in float32."""
    wide = x.float()
    return (wide * 0.5 * (wide * math.sqrt(0.5)).erf_().add_(1)).to(x.dtype)


def _gelu_tanh(x: Tensor) -> Tensor:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), in float32."""
    wide = x.float()
    inner = (wide + 0.044715 * wide * wide * wide) * math.sqrt(2 / math.pi)
    return (wide * 0.5 * inner.tanh_().add_(1)).to(x.dtype)


ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": relu,
}


def activation_mul(spec: ActivationMulSpec, table: OpTable) -> Kernel:
    """run(x) -> y. x: [tokens, 2 * features]; y: [tokens, features] = activation(x[:, :f]) * x[:, f:]."""
    activation = ACTIVATION_FUNCTIONS[spec.activation]

    def run(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return activation(gate) * up

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))


def gated_mlp(spec: GatedMLPSpec, table: OpTable) -> Kernel:
    """run(x, weights) -> y, both [tokens, hidden]; weights: GatedMLPWeights, prepared part by part."""
    gate_up = table.choose(spec.gate_up)
    down = table.choose(spec.down)
    width = spec.down.in_features
    mul = table.choose(ActivationMulSpec(features=width, activation=spec.activation, dtype=spec.down.dtype))

    def prepare(weights: GatedMLPWeights, uses: tuple[WeightUse, ...]) -> tuple[object, object]:
        return gate_up.bind(weights.gate_up, *uses), down.bind(weights.down, *uses)

    def run(x: Tensor, weights: tuple[object, object]) -> Tensor:
        result: Tensor = down.run(mul.run(gate_up.run(x, weights[0])), weights[1])
        return result

    return Kernel(name="gate_up + activation_mul + down", run=run, prepare=prepare)


def mlp(spec: MLPSpec, table: OpTable) -> Kernel:
    """run(x, weights) -> y, both [tokens, hidden]; weights: MLPWeights, prepared part by part."""
    up, down = table.choose(spec.up), table.choose(spec.down)
    activation = ACTIVATION_FUNCTIONS[spec.activation]

    def prepare(weights: MLPWeights, uses: tuple[WeightUse, ...]) -> tuple[object, object]:
        return up.bind(weights.up, *uses), down.bind(weights.down, *uses)

    def run(x: Tensor, weights: tuple[object, object]) -> Tensor:
        result: Tensor = down.run(activation(up.run(x, weights[0])), weights[1])
        return result

    flags = KernelFlags(batch_invariant=up.flags.batch_invariant and down.flags.batch_invariant)
    return Kernel(name="up + activation + down", run=run, prepare=prepare, flags=flags)
