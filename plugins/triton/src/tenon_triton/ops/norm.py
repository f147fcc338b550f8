# ruff: noqa: SIM102
"""RMS norms, alone or after the residual add, one program a row; optionally quantized to FP8 in the same launch.

Rounds where the reference rounds: the sum to its type, the quotient to its type before the weight (without an offset).
Rows up to 16,384 wide stay in registers; wider ones are read twice.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec

from .. import early
from ..early import trigger, wait
from .float8 import Float8Rows, empty_rows, row_scale, to_float8, warps_of

WIDEST_BLOCK = 16384
FLAGS = KernelFlags(batch_invariant=True)


@triton.jit
def normalized(total, inverse, weight, DTYPE: tl.constexpr, OFFSET: tl.constexpr):
    """float32 of values already rounded to DTYPE."""
    if OFFSET != 0.0:
        found = total * inverse * (weight + OFFSET)
    else:
        found = (total * inverse).to(DTYPE).to(tl.float32) * weight
    return found.to(DTYPE).to(tl.float32)


@triton.jit
def _norm_rows(
    x,
    residual,
    weight,
    y,
    total,
    scale,
    hidden,
    x_stride,
    residual_stride,
    eps,
    ADD: tl.constexpr,
    OFFSET: tl.constexpr,
    QUANTIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    dtype = x.dtype.element_ty
    if WHOLE:
        inside = columns < hidden
        gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        wait(EARLY)
        held = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            more = tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
            rounded = (held + more).to(dtype)
            tl.store(total + row * hidden + columns, rounded, mask=inside)
            held = rounded.to(tl.float32)
        inverse = tl.rsqrt(tl.sum(held * held, axis=0) / hidden + eps)
        found = normalized(held, inverse, gain, dtype, OFFSET)
        if QUANTIZE:
            unit = row_scale(tl.max(tl.abs(found), axis=0))
            tl.store(scale + row, unit)
            tl.store(y + row * hidden + columns, to_float8(found, unit), mask=inside)
        else:
            tl.store(y + row * hidden + columns, found.to(dtype), mask=inside)
    else:
        wait(EARLY)
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, hidden, BLOCK):
            inside = start + columns < hidden
            held = tl.load(x + row * x_stride + start + columns, mask=inside, other=0.0).to(tl.float32)
            if ADD:
                place = row * residual_stride + start + columns
                rounded = (held + tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)).to(dtype)
                tl.store(total + row * hidden + start + columns, rounded, mask=inside)
                held = rounded.to(tl.float32)
            squares += held * held
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / hidden + eps)
        largest = tl.zeros([BLOCK], tl.float32)
        unit = 1.0
        for turn in tl.static_range(2 if QUANTIZE else 1):  # the first turn finds the scale, the last one stores
            for start in range(0, hidden, BLOCK):
                inside = start + columns < hidden
                held = tl.load(x + row * x_stride + start + columns, mask=inside, other=0.0).to(tl.float32)
                if ADD:  # added again: what this program stored may not be visible to all of its threads yet
                    place = row * residual_stride + start + columns
                    more = tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
                    held = (held + more).to(dtype).to(tl.float32)
                gain = tl.load(weight + start + columns, mask=inside, other=0.0).to(tl.float32)
                found = normalized(held, inverse, gain, dtype, OFFSET)
                if QUANTIZE:
                    if turn == 0:
                        largest = tl.maximum(largest, tl.abs(found))
                    else:
                        tl.store(y + row * hidden + start + columns, to_float8(found, unit), mask=inside)
                else:
                    tl.store(y + row * hidden + start + columns, found.to(dtype), mask=inside)
            if QUANTIZE:
                if turn == 0:
                    unit = row_scale(tl.max(largest, axis=0))
                    tl.store(scale + row, unit)


def _launch(
    spec: RMSNormSpec, x: Tensor, residual: Tensor | None, weight: Tensor, y: Tensor, total: Any, scale: Any
) -> None:
    rows, hidden = x.shape
    if not rows:
        return
    block = min(triton.next_power_of_2(hidden), WIDEST_BLOCK)
    _norm_rows[(rows,)](
        x,
        residual,
        weight,
        y,
        total,
        scale,
        hidden,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        spec.eps,
        ADD=residual is not None,
        OFFSET=spec.weight_offset,
        QUANTIZE=scale is not None,
        WHOLE=hidden <= block,
        BLOCK=block,
        num_warps=warps_of(block),
        **early.options(),
    )


def contiguous_rows(x: Tensor) -> Tensor:
    """x as [rows, width] with contiguous rows, a view where it can be."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def rms_norm(spec: RMSNormSpec) -> Kernel | No:
    """run(x, weight) -> y, as the reference's; x: [..., hidden]."""
    if not spec.dtype.is_floating:
        return No(f"normalizes float types, not {spec.dtype}")

    def run(x: Tensor, weight: Tensor) -> Tensor:
        flat = contiguous_rows(x)
        y = torch.empty(flat.shape, dtype=x.dtype, device=x.device)
        _launch(spec, flat, None, weight, y, None, None)
        return y.view(x.shape)

    return Kernel(name="triton rows", run=run, flags=FLAGS)


def add_rms_norm(spec: AddRMSNormSpec) -> Kernel | No:
    """run(x, residual, weight) -> (y, sum), as the reference's, in one launch."""
    if not spec.norm.dtype.is_floating:
        return No(f"normalizes float types, not {spec.norm.dtype}")
    norm = spec.norm

    def run(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        x, residual = contiguous_rows(x), contiguous_rows(residual)
        y, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
        _launch(norm, x, residual, weight, y, total, None)
        return y, total

    return Kernel(name="triton rows, add fused", run=run, flags=FLAGS)


def rms_norm_float8(spec: RMSNormSpec, x: Tensor, weight: Tensor) -> Float8Rows:
    """The norm's rows quantized to FP8, in one launch; x: [tokens, hidden]."""
    x = contiguous_rows(x)
    found = empty_rows(x.shape[0], x.shape[1], x)
    _launch(spec, x, None, weight, found.values, None, found.scale)
    return found


def add_rms_norm_float8(spec: RMSNormSpec, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Float8Rows, Tensor]:
    """(norm of the sum quantized to FP8, the sum), in one launch."""
    x, residual = contiguous_rows(x), contiguous_rows(residual)
    found, total = empty_rows(x.shape[0], x.shape[1], x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(spec, x, residual, weight, found.values, total, found.scale)
    return found, total
