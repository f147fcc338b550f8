"""Mixture of experts on the CPU: tokens sorted by expert, so that each expert is two products over its own slice.

By one call of the native library on its packed weights (`native_moe.py`), or by torch, expert after expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear import WeightScheme
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.mlp_reference import ACTIVATION_FUNCTIONS
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.moe_reference import route
from tenon_platforms.ops.weights import MoEWeights, PartTensors
from tenon_platforms.torch_dtypes import to_torch

from ..native_linear import NativeLinear, pack_dense
from ..native_moe import NativeMoE
from .linear import Product, WeightPolicy, join
from .native_weights import Packer

Expert = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's prepared weights. router: [experts, hidden]; each expert: [n, hidden] of [n, hidden]."""

    router: Tensor
    each: list[Expert]
    nbytes: int  # of memory held


def moe_layer(spec: MoESpec, policy: WeightPolicy) -> Kernel | No:
    """run(x, weights) -> y, both [tokens, hidden]; weights: prepared `Experts`. Products by torch."""
    if spec.activation not in ACTIVATION_FUNCTIONS:
        return No(f"unknown activation {spec.activation!r}")
    if policy.computes_in(spec.dtype) != spec.dtype:
        return No(f"{spec.dtype} has no product of its own on this CPU", "dtype float32")
    activation, width = ACTIVATION_FUNCTIONS[spec.activation], spec.intermediate

    def expert(gate_up: Product, down: Product) -> Expert:
        def run(x: Tensor) -> Tensor:
            gate, up = gate_up(x).split(width, dim=-1)
            return down(activation(gate).mul_(up))

        return run

    def prepare(weights: MoEWeights, uses: tuple[WeightUse, ...]) -> Experts:
        each, size = [], 0
        for number in range(spec.num_experts):
            parts = [
                dense_weight(scheme, tensors, policy.load_type(scheme, spec.dtype))
                for scheme, tensors in _parts(spec, weights, number)
            ]
            gate_up = policy.keep((spec.gate, spec.up), join(parts[:2]), None, spec.dtype)
            down = policy.keep((spec.down,), parts[2], None, spec.dtype)
            each.append(expert(gate_up, down))
            size += gate_up.nbytes + down.nbytes
        return Experts(weights.router.to(to_torch(spec.dtype)), each, size + weights.router.nbytes)

    dense = all(scheme.id.startswith("dense") for scheme in (spec.gate, spec.up, spec.down))
    return Kernel(
        name="sorted by expert",
        run=_runner(spec),
        prepare=prepare,
        native="native" if dense else "dequantize",
        flags=KernelFlags(graph_safe=False),
    )


def native_moe_layer(spec: MoESpec, packer: Packer) -> Kernel | No:
    """The same on packed weights, by one native call, silu(gate) * up at the end of an expert's first product."""
    if spec.activation != "silu":
        return No(f"has silu in a product's end, not {spec.activation}")
    shapes = ((spec.gate, spec.hidden), (spec.up, spec.hidden), (spec.down, spec.intermediate))
    for scheme, columns in shapes:
        if (refusal := packer.refuses(scheme, columns, spec.dtype)) is not None:
            return refusal

    def linears(weights: MoEWeights, number: int) -> tuple[NativeLinear, NativeLinear]:
        packed = [
            packer.pack(scheme, tensors, columns, spec.dtype)
            for (scheme, tensors), (_, columns) in zip(_parts(spec, weights, number), shapes, strict=True)
        ]
        first = NativeLinear(packed[:2], silu_mul=True, fine=packer.is_fine, alike=packer.alike)
        return first, NativeLinear(packed[2:], fine=packer.is_fine, alike=packer.alike)

    def prepare(weights: MoEWeights, uses: tuple[WeightUse, ...]) -> NativeMoE:
        return NativeMoE(
            router=NativeLinear([pack_dense(weights.router.float())]),
            experts=[linears(weights, number) for number in range(spec.num_experts)],
            top_k=spec.top_k,
            renormalize=spec.renormalize,
        )

    def run(x: Tensor, weights: NativeMoE) -> Tensor:
        return weights(x)

    return packer.kernel(shapes, spec.dtype, run=run, prepare=prepare)


def _parts(spec: MoESpec, weights: MoEWeights, number: int) -> list[tuple[WeightScheme, PartTensors]]:
    """Gate, up and down of one expert."""
    pairs = ((spec.gate, weights.gate), (spec.up, weights.up), (spec.down, weights.down))
    return [(scheme, {name: stack[number] for name, stack in part.items()}) for scheme, part in pairs]


def _runner(spec: MoESpec) -> Callable[[Tensor, Experts], Tensor]:
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
                parts.append(weights.each[expert](sorted_x[start : start + count]))
                start += count
        if not parts:
            return torch.zeros_like(x)
        found = torch.cat(parts).mul_(scores.view(-1).index_select(0, order).to(x.dtype)[:, None])
        return torch.zeros_like(x).index_add_(0, tokens, found)

    return run
