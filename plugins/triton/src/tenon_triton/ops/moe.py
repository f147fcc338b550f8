"""A mixture of experts: routed in one launch, sorted in one, two grouped products, one sum; nothing on the host.

Few tokens go unsorted, a program for each of a token's experts: below the number of experts hardly any is shared. Which
way and which tile is decided by the number of tokens alone, so a captured graph holds one of them.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.mlp import ACTIVATIONS
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.weights import MoEWeights
from tenon_platforms.torch_dtypes import to_torch

from . import experts

Prepared = tuple[Tensor, Tensor, Tensor]  # router [E, H], gate_up [E, 2 F, H], down [E, H, F]
SINGLE_SHARE = 4  # unsorted while assignments are at most a quarter of the experts
SORT_BLOCK = 1024
ROWS, BLOCK = 4, 512  # of the unsorted product
TILE_N, TILE_K = 64, 64


def rows_of_tile(assignments: int, num_experts: int) -> int:
    """Assignments a tile holds: about what an expert gets, so that few lie empty."""
    mean = assignments // num_experts
    return 16 if mean <= 16 else 32 if mean <= 64 else 64


def moe_layer(spec: MoESpec) -> Kernel | No:
    """run(x, weights) -> y, both [tokens, hidden], as the reference's; weights: router, gate over up, down."""
    if spec.activation not in ACTIVATIONS:
        return No(f"unknown activation {spec.activation!r}")
    if spec.scoring != "softmax" or spec.shared_intermediate:
        return No("scores by softmax, without a shared expert")
    if not spec.dtype.is_floating or spec.dtype.num_bytes > 4:
        return No(f"multiplies float32 and half types, not {spec.dtype}")
    dtype = to_torch(spec.dtype)
    top_k, num_experts, hidden, inner = spec.top_k, spec.num_experts, spec.hidden, spec.intermediate
    precision = "ieee" if dtype == torch.float32 else None

    def prepare(weights: MoEWeights, uses: tuple[WeightUse, ...]) -> Prepared:
        parts = (dense_weight(spec.gate, weights.gate, dtype), dense_weight(spec.up, weights.up, dtype))
        down = dense_weight(spec.down, weights.down, dtype)
        return weights.router.to(dtype).contiguous(), torch.cat(parts, dim=1), down.contiguous()

    def run(x: Tensor, weights: Prepared) -> Tensor:
        router, gate_up, down = weights
        x = x.contiguous()
        tokens, count, device = x.shape[0], x.shape[0] * top_k, x.device
        y = torch.empty_like(x)
        if not tokens:
            return y
        chosen = torch.empty((count,), dtype=torch.int32, device=device)
        shares = torch.empty((count,), dtype=torch.float32, device=device)
        middle = torch.empty((count, inner), dtype=dtype, device=device)
        parts = torch.empty((count, hidden), dtype=torch.float32, device=device)
        experts.route[(tokens,)](
            linear(x, router),
            chosen,
            shares,
            num_experts,
            TOP_K=top_k,
            RENORMALIZE=spec.renormalize,
            PLACES=triton.next_power_of_2(top_k),
            WIDTH=triton.next_power_of_2(num_experts),
            num_warps=1,
        )
        first = (x, gate_up, middle, inner, hidden, top_k, True)
        second = (middle, down, parts, hidden, inner, 1, False)
        if count * SINGLE_SHARE <= num_experts or count == top_k:
            for product in (first, second):
                _single(*product, chosen, shares, spec.activation)
        else:
            m = rows_of_tile(count, num_experts)
            order, owner = _sorted(chosen, num_experts, m)
            for product in (first, second):
                _grouped(*product, order, owner, shares, spec.activation, m, precision)
        block = min(triton.next_power_of_2(hidden), 1024)
        experts.total[(tokens, triton.cdiv(hidden, block))](parts, y, hidden, TOP_K=top_k, BLOCK=block, num_warps=4)
        return y

    dense = all(scheme.id.startswith("dense") for scheme in (spec.gate, spec.up, spec.down))
    return Kernel(
        name="triton grouped", run=run, prepare=prepare, native="native" if dense else "dequantize", flags=KernelFlags()
    )


def _sorted(chosen: Tensor, num_experts: int, m: int) -> tuple[Tensor, Tensor]:
    """(order, owner) of the assignments to experts `chosen`, in groups of m."""
    count = chosen.shape[0]
    num_tiles = min(count, num_experts) + count // m  # the most there can be: every expert's last tile is not full
    order = torch.empty((num_tiles * m,), dtype=torch.int32, device=chosen.device)
    owner = torch.empty((num_tiles,), dtype=torch.int32, device=chosen.device)
    experts.sort[(num_experts + 1,)](
        chosen,
        order,
        owner,
        count,
        num_tiles,
        num_experts,
        M=m,
        WIDTH=triton.next_power_of_2(num_experts + 1),
        BLOCK=SORT_BLOCK,
        num_warps=4,
    )
    return order, owner


def _grouped(
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    out_features: int,
    in_features: int,
    divide: int,
    paired: bool,
    order: Tensor,
    owner: Tensor,
    shares: Tensor,
    kind: str,
    m: int,
    precision: str | None,
) -> None:
    experts.grouped[(triton.cdiv(out_features, TILE_N), owner.shape[0])](
        x,
        weight,
        y,
        order,
        owner,
        shares,
        y.shape[0],
        out_features,
        in_features,
        DIVIDE=divide,
        PAIRED=paired,
        KIND=kind if paired else "",
        PRECISION=precision,
        M=m,
        N=TILE_N,
        K=TILE_K,
        EVEN=in_features % TILE_K == 0,
        num_warps=4,
        num_stages=3,
    )


def _single(
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    out_features: int,
    in_features: int,
    divide: int,
    paired: bool,
    chosen: Tensor,
    shares: Tensor,
    kind: str,
) -> None:
    block = min(triton.next_power_of_2(in_features), BLOCK)
    experts.single[(triton.cdiv(out_features, ROWS), y.shape[0])](
        x,
        weight,
        y,
        chosen,
        shares,
        out_features,
        in_features,
        DIVIDE=divide,
        PAIRED=paired,
        KIND=kind if paired else "",
        ROWS=ROWS,
        BLOCK=block,
        EVEN=in_features % block == 0,
        num_warps=4,
    )
