"""The activation of a gated MLP times its other half, in one launch; optionally quantized to FP8 a token.

Rounds where the reference rounds: the activation to its type, then the product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.mlp import ACTIVATIONS, ActivationMulSpec

from .. import early
from ..early import trigger, wait
from .float8 import WHOLE_ROW, Float8Rows, empty_rows, row_scale, to_float8, warps_of

BLOCK = 1024


@triton.jit
def activate(x, KIND: tl.constexpr):
    """The activation named KIND of float32 values."""
    if KIND == "silu":
        found = x * tl.sigmoid(x)
    elif KIND == "gelu":
        found = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        found = x * tl.sigmoid(2.0 * inner)  # (1 + tanh(z)) / 2 is sigmoid(2 z)
    else:
        tl.static_assert(KIND == "relu")
        found = tl.maximum(x, 0.0)
    return found


@triton.jit
def gated(gate, up, DTYPE: tl.constexpr, KIND: tl.constexpr):
    """activation(gate) * up of float32 values already rounded to DTYPE; the result is DTYPE's, as float32."""
    return (activate(gate, KIND).to(DTYPE).to(tl.float32) * up).to(DTYPE).to(tl.float32)


@triton.jit
def _activation_mul(x, y, features, x_stride, KIND: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    trigger(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < features
    dtype = x.dtype.element_ty
    gate = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + features + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * features + columns, gated(gate, up, dtype, KIND).to(dtype), mask=inside)


@triton.jit
def _activation_mul_float8(
    x,
    values,
    scale,
    features,
    x_stride,
    KIND: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    trigger(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    dtype = x.dtype.element_ty
    if WHOLE:
        inside = columns < features
        gate = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(x + row * x_stride + features + columns, mask=inside, other=0.0).to(tl.float32)
        found = gated(gate, up, dtype, KIND).to(dtype)  # half the registers until the row's scale is known
        unit = row_scale(tl.max(tl.abs(found.to(tl.float32)), axis=0))
        tl.store(scale + row, unit)
        tl.store(values + row * features + columns, to_float8(found.to(tl.float32), unit), mask=inside)
    else:
        largest = tl.zeros([BLOCK], tl.float32)
        for start in range(0, features, BLOCK):
            inside = start + columns < features
            gate = tl.load(x + row * x_stride + start + columns, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(x + row * x_stride + features + start + columns, mask=inside, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(gated(gate, up, dtype, KIND)))
        unit = row_scale(tl.max(largest, axis=0))
        tl.store(scale + row, unit)
        for start in range(0, features, BLOCK):
            inside = start + columns < features
            gate = tl.load(x + row * x_stride + start + columns, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(x + row * x_stride + features + start + columns, mask=inside, other=0.0).to(tl.float32)
            found = gated(gate, up, dtype, KIND)
            tl.store(values + row * features + start + columns, to_float8(found, unit), mask=inside)


def activation_mul(spec: ActivationMulSpec) -> Kernel | No:
    """run(x) -> y, [tokens, features] of [tokens, 2 * features], as the reference's."""
    if spec.activation not in ACTIVATIONS:
        return No(f"unknown activation {spec.activation!r}")
    if not spec.dtype.is_floating:
        return No(f"activates float types, not {spec.dtype}")
    kind = spec.activation

    def run(x: Tensor) -> Tensor:
        return multiply(x, kind)

    return Kernel(name="triton fused", run=run, flags=KernelFlags(batch_invariant=True))


def multiply(x: Tensor, kind: str) -> Tensor:
    """activation `kind` of x's first half times its second; x: [tokens, 2 * features] with contiguous rows."""
    tokens, features = x.shape[0], x.shape[1] // 2
    y = torch.empty((tokens, features), dtype=x.dtype, device=x.device)
    if tokens:
        block = min(triton.next_power_of_2(features), BLOCK)
        grid = (tokens, triton.cdiv(features, block))
        _activation_mul[grid](x, y, features, x.stride(0), KIND=kind, BLOCK=block, num_warps=4, **early.options())
    return y


def multiply_float8(x: Tensor, kind: str) -> Float8Rows:
    """The same, quantized to FP8 a token in the same launch."""
    tokens, features = x.shape[0], x.shape[1] // 2
    found = empty_rows(tokens, features, x)
    if tokens:
        block = min(triton.next_power_of_2(features), WHOLE_ROW)
        _activation_mul_float8[(tokens,)](
            x,
            found.values,
            found.scale,
            features,
            x.stride(0),
            KIND=kind,
            WHOLE=features <= block,
            BLOCK=block,
            num_warps=min(
                8, warps_of(block)
            ),  # more registers a thread, so that two rows are at work beside each other
            **early.options(),
        )
    return found
