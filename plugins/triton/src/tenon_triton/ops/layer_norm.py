"""Layer norm, one program a row: a row's bits do not hang on the batch. Rounds once, at the end, as the reference."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.norm import LayerNormSpec
from tenon_platforms.ops.weights import NormWeights

from .. import early
from ..early import trigger, wait
from .float8 import warps_of

WIDEST = 16384  # elements of a row that a program holds


@triton.jit
def _layer_norm_rows(x, weight, bias, y, hidden, x_stride, eps, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    trigger(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    wait(EARLY)
    held = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, held - tl.sum(held, axis=0) / hidden, 0.0)
    variance = tl.sum(centred * centred, axis=0) / hidden
    found = centred * tl.rsqrt(variance + eps) * gain + shift
    tl.store(y + row * hidden + columns, found.to(y.dtype.element_ty), mask=inside)


def layer_norm(spec: LayerNormSpec) -> Kernel | No:
    """run(x, weights) -> y, as the reference's; x: [..., hidden]."""
    if not spec.dtype.is_floating:
        return No(f"normalizes float types, not {spec.dtype}")
    if spec.hidden > WIDEST:
        return No(f"holds rows of at most {WIDEST} elements, not {spec.hidden}", alternative="the reference")
    block = triton.next_power_of_2(spec.hidden)

    def run(x: Tensor, weights: NormWeights) -> Tensor:
        rows = x.reshape(-1, spec.hidden)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        if len(rows):
            _layer_norm_rows[(len(rows),)](
                rows,
                weights.weight,
                weights.bias,
                y,
                spec.hidden,
                rows.stride(0),
                spec.eps,
                BLOCK=block,
                num_warps=warps_of(block),
                **early.options(),
            )
        return y.view(x.shape)

    return Kernel(name="triton rows", run=run, flags=KernelFlags(batch_invariant=True))
