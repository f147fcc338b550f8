"""Norms, rotation with KV write and activation by the native library: one call each, any float type.

Half types round where the contract's references round. What a kernel cannot compute is answered with `No`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.mlp import ActivationMulSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.torch_dtypes import to_torch

from .. import native_attention
from ..step_calls import KV_TYPES, TYPES, kernel

FLAGS = KernelFlags(batch_invariant=True)
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}  # as ActivationMulParams numbers them


def rms_norm(spec: RMSNormSpec) -> Kernel | No:
    """run(x, weight) -> y."""
    if (number := TYPES.get(to_torch(spec.dtype))) is None:
        return _no_type(spec)
    hidden, numbers = spec.hidden, {"eps": spec.eps, "offset": spec.weight_offset, "type": number}

    def run(x: Tensor, weight: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=x.dtype)
        kernel("rms_norm")(x=x, weight=weight, y=y, rows=x.numel() // hidden, hidden=hidden, **numbers)
        return y

    return Kernel(name="native", run=run, flags=FLAGS)


def add_rms_norm(spec: AddRMSNormSpec) -> Kernel | No:
    """run(x, residual, weight) -> (y, x + residual)."""
    norm = spec.norm
    if (number := TYPES.get(to_torch(norm.dtype))) is None:
        return _no_type(norm)
    hidden, numbers = norm.hidden, {"eps": norm.eps, "offset": norm.weight_offset, "type": number}

    def run(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        y, total = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
        kernel("rms_norm")(
            x=x, residual=residual, weight=weight, y=y, total=total, rows=x.numel() // hidden, hidden=hidden, **numbers
        )
        return y, total

    return Kernel(name="native", run=run, flags=FLAGS)


def activation_mul(spec: ActivationMulSpec) -> Kernel | No:
    """run(x) -> y, [tokens, features] of [tokens, 2 * features]."""
    if (number := TYPES.get(to_torch(spec.dtype))) is None:
        return _no_type(spec)
    if (activation := ACTIVATIONS.get(spec.activation)) is None:
        return No(f"unknown activation {spec.activation!r}")
    width = spec.features

    def run(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty((x.shape[0], width), dtype=x.dtype)
        kernel("activation_mul")(x=x, y=y, rows=x.shape[0], width=width, activation=activation, type=number)
        return y

    return Kernel(name="native", run=run, flags=FLAGS)


def qk_norm_rope_kv_write(spec: QKNormRopeKVWriteSpec) -> Kernel | No:
    """run(qkv, positions, cos_sin, q_weight, k_weight, cache, slots) -> q, as the reference's."""
    if spec.layout_id != native_attention.LAYOUT_ID:
        return No(f"writes the KV layout {native_attention.LAYOUT_ID}, not {spec.layout_id}")
    if (number := TYPES.get(to_torch(spec.dtype))) is None:
        return _no_type(spec)
    rope = spec.rope
    if rope is not None and rope.axis_sections:
        return No("rotates by one position axis")
    norms = {
        f"{name}_{field}": 0.0 if norm is None else getattr(norm, source)
        for name, norm in (("q", spec.q_norm), ("k", spec.k_norm))
        for field, source in (("eps", "eps"), ("offset", "weight_offset"))
    }
    heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    rotary_dim, interleaved = (rope.rotary_dim, rope.interleaved) if rope is not None else (0, False)

    def run(
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        qkv = qkv.contiguous()
        query = torch.empty((qkv.shape[0], heads, dim), dtype=qkv.dtype)
        kernel("qk_norm_rope_write")(
            qkv=qkv,
            query=query,
            positions=positions,
            cos_sin=cos_sin,
            q_weight=None if spec.q_norm is None else q_weight,
            k_weight=None if spec.k_norm is None else k_weight,
            cache=cache,
            slots=slots,
            tokens=qkv.shape[0],
            cache_stride=cache.stride(0),
            block_size=cache.shape[-1] // native_attention.token_width(dim, cache.dtype),
            heads=heads,
            kv_heads=kv_heads,
            dim=dim,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
            type=number,
            kv_type=KV_TYPES[cache.dtype],
            **norms,
        )
        return query

    return Kernel(name="native", run=run, flags=KernelFlags(batch_invariant=True, in_place=("cache",)))


def _no_type(spec: RMSNormSpec | ActivationMulSpec | QKNormRopeKVWriteSpec) -> No:
    return No(f"computes float32, bfloat16 and float16, not {spec.dtype}")
