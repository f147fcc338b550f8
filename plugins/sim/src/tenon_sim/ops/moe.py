"""Mixture of experts over fixed shapes: every expert sees every token, weights of zero drop what was not chosen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from tenon_platforms.kernel import Kernel, No, WeightUse
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.mlp_reference import ACTIVATION_FUNCTIONS
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.moe_reference import route
from tenon_platforms.ops.weights import MoEWeights
from tenon_platforms.torch_dtypes import to_torch

Prepared = tuple[Tensor, Tensor, Tensor]  # router [E, H], gate_up [E, 2 F, H], down [E, H, F]


def moe_layer(spec: MoESpec) -> Kernel | No:
    """run(x, weights) -> y, both [tokens, hidden]; weights dense, activations as they come."""
    if spec.scoring != "softmax":
        return No(f"knows no scoring {spec.scoring!r}")
    dtype = to_torch(spec.dtype)
    activation = ACTIVATION_FUNCTIONS[spec.activation]

    def prepare(weights: MoEWeights, uses: tuple[WeightUse, ...]) -> Prepared:
        gate, up = dense_weight(spec.gate, weights.gate, dtype), dense_weight(spec.up, weights.up, dtype)
        return weights.router.to(dtype), torch.cat((gate, up), dim=1), dense_weight(spec.down, weights.down, dtype)

    def run(x: Tensor, weights: Prepared) -> Tensor:
        router, gate_up, down = weights
        experts, scores = route(x, router, spec)
        shares = torch.zeros(len(x), spec.num_experts, dtype=scores.dtype, device=x.device)
        shares = shares.scatter(1, experts, scores).to(x.dtype)  # [tokens, experts]
        y = torch.zeros_like(x)
        for index in range(spec.num_experts):
            gate, up = linear(x, gate_up[index]).chunk(2, dim=-1)
            part = linear(activation(gate) * up, down[index])
            y = y + part * shares[:, index, None]
        return y

    return Kernel(name="sim.all_experts", run=run, prepare=prepare)
