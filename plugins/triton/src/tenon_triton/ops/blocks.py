"""x W^T for FP8 weights with a scale a block of rows and columns (DeepSeek's checkpoints).

Every run of K columns is a product of its own: its float32 sums are scaled by the run's scales and then added. Few
tokens keep their type and the weight is widened on the way, since reading it is what takes the time; many are quantized
with a scale a token and run, as the scheme says, and meet the weight as it is. Scales of the weight are kept a row and
run, which is one byte in 32 more, so that parts of any height lie under each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No, WeightUse
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.quantized import FP8Block
from tenon_platforms.ops.weights import LinearWeights
from tenon_platforms.torch_dtypes import to_torch

from .float8 import quantize
from .linear import LinearPolicy

RUNS = (32, 64, 128)  # columns of a block that are one step of the sum
KEPT = 64  # tokens that keep their type
WIDTH = 16  # least tokens of a tile


@triton.jit(do_not_specialize=["tokens"])
def _blocks(
    x,
    weight,
    x_scale,
    scale,
    bias,
    y,
    tokens,
    out_features,
    in_features,
    x_stride,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    token = tl.program_id(1) * M + tl.arange(0, M)
    column = tl.program_id(0) * N + tl.arange(0, N)
    known, there = token < tokens, column < out_features
    runs = in_features // K
    x_row = tl.where(known, token, 0).to(tl.int64)
    w_row = tl.where(there, column, 0).to(tl.int64)
    place = tl.arange(0, K)
    sums = tl.zeros([M, N], tl.float32)
    for run in range(runs):
        taken = tl.load(x + x_row[:, None] * x_stride + (run * K + place)[None, :])  # rows past the last repeat row 0
        held = tl.load(weight + w_row[:, None] * in_features + (run * K + place)[None, :])
        part = tl.dot(taken, tl.trans(held.to(taken.dtype)), input_precision=PRECISION)
        part *= tl.load(scale + w_row * runs + run)[None, :]
        if x_scale is not None:
            part *= tl.load(x_scale + x_row * runs + run)[:, None]
        sums += part
    if bias is not None:
        sums += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    target = token.to(tl.int64)[:, None] * out_features + column[None, :]
    tl.store(y + target, sums.to(y.dtype.element_ty), mask=known[:, None] & there[None, :])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeight:
    """weight: float8_e4m3fn [out, in]; scale: float32 [out, runs of columns]; bias: [out] or None."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.weight.nbytes + self.scale.nbytes


def merged_linear(spec: MergedLinearSpec, policy: LinearPolicy) -> Kernel | No:
    """run(x, weight) -> y, as the reference's; `weight`: a prepared `BlockWeight`."""
    columns = {scheme.columns for scheme in spec.schemes if isinstance(scheme, FP8Block)}
    if not all(isinstance(scheme, FP8Block) for scheme in spec.schemes) or len(columns) != 1:
        return No("multiplies FP8 weights in blocks of one width")
    width = columns.pop()
    if not policy.float8:
        return No("the device has no 8-bit float products")
    if width not in RUNS or spec.in_features % width:
        return No(f"sums runs of {', '.join(map(str, RUNS))} columns, not {spec.in_features} in runs of {width}")
    if not spec.dtype.is_floating or spec.dtype.num_bytes > 4:
        return No(f"multiplies float32 and half types, not {spec.dtype}")
    dtype = to_torch(spec.dtype)

    def prepare(weights: LinearWeights, uses: tuple[WeightUse, ...]) -> BlockWeight:
        scales = [
            tensors["scale"].float().repeat_interleave(scheme.rows, 0)[: part.out_features]
            for part, scheme, tensors in zip(spec.parts, spec.schemes, weights.parts, strict=True)
            if isinstance(scheme, FP8Block)
        ]
        kept = [tensors["weight"].view(torch.uint8) for tensors in weights.parts]
        return BlockWeight(
            weight=torch.cat(kept).view(torch.float8_e4m3fn),
            scale=torch.cat(scales).contiguous(),
            bias=None if weights.bias is None else weights.bias.to(dtype),
        )

    def run(x: Tensor, weight: BlockWeight) -> Tensor:
        return multiply(x, weight, keeps=policy.invariant or len(x) <= KEPT, one_tile=policy.invariant)

    return Kernel(
        name="FP8 blocks" + (", one tile" if policy.invariant else ""),
        run=run,
        prepare=prepare,
        flags=KernelFlags(batch_invariant=policy.invariant),
    )


def multiply(x: Tensor, held: BlockWeight, *, keeps: bool, one_tile: bool = False) -> Tensor:
    """y [tokens, out] in x's type of x [tokens, in]. keeps: x is not quantized. one_tile: at any number of tokens."""
    tokens, in_features = x.shape
    out_features, runs = held.scale.shape
    y = torch.empty((tokens, out_features), dtype=x.dtype, device=x.device)
    if not tokens:
        return y
    width = in_features // runs
    x, x_scale = x if x.stride(1) == 1 else x.contiguous(), None
    if not keeps:
        rows = quantize(x.reshape(-1, width))
        x, x_scale = rows.values.view(tokens, in_features), rows.scale
    m = 64 if one_tile else min(max(triton.next_power_of_2(tokens), WIDTH), 128)
    n = 64 if one_tile or m > 64 else 32
    _blocks[(triton.cdiv(out_features, n), triton.cdiv(tokens, m))](
        x,
        held.weight,
        x_scale,
        held.scale,
        held.bias,
        y,
        tokens,
        out_features,
        in_features,
        x.stride(0),
        M=m,
        N=n,
        K=width,
        PRECISION="ieee" if x.dtype == torch.float32 else None,
        num_warps=4,
        num_stages=3,
    )
    return y
