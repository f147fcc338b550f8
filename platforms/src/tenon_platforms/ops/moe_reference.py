"""Reference kernel of `moe.py`: one expert after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear, softmax

from ..kernel import Kernel, KernelFlags, WeightUse
from ..torch_dtypes import to_torch
from .linear_reference import dense_weight, how_served
from .mlp_reference import ACTIVATION_FUNCTIONS
from .quantized_reference import ROUNDING, rounded_input

if TYPE_CHECKING:
    from .linear import WeightScheme
    from .moe import MoESpec
    from .table import OpTable
    from .weights import MoEWeights

# router [E, H], gate_up [E, 2 F, H], down [E, H, F], the input scales [E, 1] of gate, up and down where they have them
Prepared = tuple[Tensor, Tensor, Tensor, tuple["Tensor | None", "Tensor | None", "Tensor | None"]]


def route(x: Tensor, router: Tensor, spec: MoESpec) -> tuple[Tensor, Tensor]:
    """Experts and weights of every token: (int64 [tokens, top_k], float32 [tokens, top_k]); scores in float32."""
    scores = softmax(linear(x, router), dim=-1, dtype=torch.float32)
    weights, experts = scores.topk(spec.top_k, dim=-1)
    if spec.renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return experts, weights


def moe_layer(spec: MoESpec, table: OpTable) -> Kernel:
    """run(x, weights) -> y, both [tokens, hidden]; weights: MoEWeights before preparing."""
    if spec.scoring != "softmax" or spec.shared_intermediate:
        raise NotImplementedError(f"MoE with scoring {spec.scoring!r} and a shared expert has no reference yet")
    dtype = to_torch(spec.dtype)
    activation = ACTIVATION_FUNCTIONS[spec.activation]

    def prepare(weights: MoEWeights, uses: tuple[WeightUse, ...]) -> Prepared:
        gate_up = torch.cat(
            (dense_weight(spec.gate, weights.gate, dtype), dense_weight(spec.up, weights.up, dtype)), dim=1
        )
        down = dense_weight(spec.down, weights.down, dtype)
        scales = tuple(part.get("input_scale") for part in (weights.gate, weights.up, weights.down))
        return weights.router.to(dtype), gate_up, down, (scales[0], scales[1], scales[2])

    def seen(scheme: WeightScheme, x: Tensor, scales: Tensor | None, index: int) -> Tensor:
        return rounded_input(scheme, x, None if scales is None else scales[index])

    def expert(x: Tensor, weights: Prepared, index: int) -> Tensor:
        _, gate_up, down, scales = weights
        if isinstance(spec.gate, ROUNDING) or isinstance(spec.up, ROUNDING):
            first, second = gate_up[index].chunk(2)
            gate = linear(seen(spec.gate, x, scales[0], index), first)
            up = linear(seen(spec.up, x, scales[1], index), second)
        else:
            gate, up = linear(x, gate_up[index]).chunk(2, dim=-1)
        return linear(seen(spec.down, activation(gate) * up, scales[2], index), down[index])

    def run(x: Tensor, weights: Prepared) -> Tensor:
        experts, scores = route(x, weights[0], spec)
        y = torch.zeros_like(x)
        for index in experts.unique().tolist():
            token, place = torch.where(experts == index)
            part = expert(x[token], weights, index)
            y.index_add_(0, token, part * scores[token, place, None].to(x.dtype))
        return y

    def run_invariant(x: Tensor, weights: Prepared) -> Tensor:
        rows = [run(row.clone(), weights) for row in x.split(1)]
        return torch.cat(rows) if rows else x.clone()

    return Kernel(
        name="reference",
        run=run_invariant if table.batch_invariant else run,
        prepare=prepare,
        native=how_served((spec.gate, spec.up, spec.down)),
        flags=KernelFlags(graph_safe=False, batch_invariant=table.batch_invariant),
    )
