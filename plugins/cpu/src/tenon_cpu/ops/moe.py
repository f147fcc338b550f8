"""Mixture of experts on the CPU: tokens sorted by expert, so that each expert is two products over its own slice."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.mlp_reference import ACTIVATION_FUNCTIONS
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.moe_reference import route
from tenon_platforms.ops.weights import MoEWeights
from tenon_platforms.torch_dtypes import to_torch

from .linear import Product, WeightPolicy, join


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's prepared weights. router: [experts, hidden]; one product for gate and up, one for down, an expert."""

    router: Tensor
    gate_up: list[Product]
    down: list[Product]

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.router.nbytes + sum(product.nbytes for product in (*self.gate_up, *self.down))


def moe_layer(spec: MoESpec, policy: WeightPolicy) -> Kernel | No:
    """run(x, weights) -> y, both [tokens, hidden]; weights: prepared `Experts`."""
    if spec.activation not in ACTIVATION_FUNCTIONS:
        return No(f"unknown activation {spec.activation!r}")
    if policy.computes_in(spec.dtype) != spec.dtype:
        return No(f"{spec.dtype} has no product of its own on this CPU", "dtype float32")
    activation, width = ACTIVATION_FUNCTIONS[spec.activation], spec.intermediate

    def prepare(weights: MoEWeights, uses: tuple[WeightUse, ...]) -> Experts:
        gate_up, down = [], []
        for expert in range(spec.num_experts):
            parts = [
                dense_weight(
                    scheme, {name: t[expert] for name, t in part.items()}, policy.load_type(scheme, spec.dtype)
                )
                for scheme, part in ((spec.gate, weights.gate), (spec.up, weights.up), (spec.down, weights.down))
            ]
            gate_up.append(policy.keep((spec.gate, spec.up), join(parts[:2]), None, spec.dtype))
            down.append(policy.keep((spec.down,), parts[2], None, spec.dtype))
        return Experts(weights.router.to(to_torch(spec.dtype)), gate_up, down)

    def run(x: Tensor, weights: Experts) -> Tensor:
        experts, scores = route(x, weights.router, spec)  # [tokens, top_k] each
        order = experts.view(-1).argsort(stable=True)
        tokens = torch.div(order, spec.top_k, rounding_mode="floor")
        counts = experts.view(-1).bincount(minlength=spec.num_experts).tolist()
        sorted_x = x.index_select(0, tokens)
        parts: list[Tensor] = []
        start = 0
        for expert, count in enumerate(counts):
            if count:
                gate, up = weights.gate_up[expert](sorted_x[start : start + count]).split(width, dim=-1)
                parts.append(weights.down[expert](activation(gate).mul_(up)))
                start += count
        if not parts:
            return torch.zeros_like(x)
        found = torch.cat(parts).mul_(scores.view(-1).index_select(0, order).to(x.dtype)[:, None])
        return torch.zeros_like(x).index_add_(0, tokens, found)

    dense = all(scheme.id.startswith("dense") for scheme in (spec.gate, spec.up, spec.down))
    return Kernel(
        name="sorted by expert",
        run=run,
        prepare=prepare,
        native="native" if dense else "dequantize",
        flags=KernelFlags(graph_safe=False),
    )
