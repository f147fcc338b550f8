"""Reference kernel of `moe.py`: one expert after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear, softmax

from ..kernel import Kernel, KernelFlags, WeightUse
from ..torch_dtypes import to_torch
from .linear_reference import dense_weight
from .mlp_reference import ACTIVATION_FUNCTIONS

if TYPE_CHECKING:
    from .moe import MoESpec
    from .table import OpTable
    from .weights import MoEWeights

Prepared = tuple[Tensor, Tensor, Tensor]  # router [E, H], gate_up [E, 2 F, H], down [E, H, F]


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
        return weights.router.to(dtype), gate_up, dense_weight(spec.down, weights.down, dtype)

    def expert(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = linear(x, gate_up).chunk(2, dim=-1)
        return linear(activation(gate) * up, down)

    def run(x: Tensor, weights: Prepared) -> Tensor:
        router, gate_up, down = weights
        experts, scores = route(x, router, spec)
        y = torch.zeros_like(x)
        for index in experts.unique().tolist():
            token, place = torch.where(experts == index)
            part = expert(x[token], gate_up[index], down[index])
            y.index_add_(0, token, part * scores[token, place, None].to(x.dtype))
        return y

    def run_invariant(x: Tensor, weights: Prepared) -> Tensor:
        rows = [run(row.clone(), weights) for row in x.split(1)]
        return torch.cat(rows) if rows else x.clone()

    schemes = (spec.gate, spec.up, spec.down)
    return Kernel(
        name="reference",
        run=run_invariant if table.batch_invariant else run,
        prepare=prepare,
        native="native" if all(scheme.id.startswith("dense") for scheme in schemes) else "dequantize",
        flags=KernelFlags(graph_safe=False, batch_invariant=table.batch_invariant),
    )
