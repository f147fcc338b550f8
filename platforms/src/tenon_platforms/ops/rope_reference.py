"""Reference kernels of `rope.py`, and the table of cosines and sines both sides share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernel import Kernel, KernelFlags

if TYPE_CHECKING:
    from ..attention import AttentionBackend
    from .rope import QKNormRopeKVWriteSpec, RopeScaling, RopeSpec
    from .table import OpTable


def rope_table(spec: RopeSpec) -> Tensor:
    """Cosines and sines, float32 [max_positions, rotary_dim]: first half cos, second half sin.

    Angles are position * base^(-2i/rotary_dim), stretched by spec.scaling, computed in float32 as Transformers does.
    """
    exponent = torch.arange(0, spec.rotary_dim, 2, dtype=torch.int64).float() / spec.rotary_dim
    frequencies = 1.0 / (spec.base**exponent)
    factor = 1.0
    if spec.scaling is not None:
        frequencies = _stretch(frequencies, spec.scaling, spec)
        factor = spec.scaling.attention_factor
    angles = torch.outer(torch.arange(spec.max_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos() * factor, angles.sin() * factor), dim=-1)


def rope(spec: RopeSpec, table: OpTable) -> Kernel:
    """run(q, k, positions, table) -> (q, k).

    q: [tokens, heads, head_dim]; k: [tokens, kv heads, head_dim]; positions: [axes, tokens] integer;
    table: `rope_table(spec)`. Rotation in spec.dtype, as Transformers does. Dims past rotary_dim pass unchanged.
    """

    def run(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = _angles(spec, positions, cos_sin, q.dtype)  # [tokens, 1, rotary_dim / 2]
        return _rotate(q, cos, sin, spec), _rotate(k, cos, sin, spec)

    return Kernel(name="reference", run=run, flags=KernelFlags(batch_invariant=True))


def qk_norm_rope_kv_write(spec: QKNormRopeKVWriteSpec, table: OpTable, attention: AttentionBackend) -> Kernel:
    """run(qkv, positions, cos_sin, q_weight, k_weight, cache, slots) -> q.

    qkv: [tokens, (heads + 2 kv heads) * head_dim]; positions: [axes, tokens]; cos_sin: the rope table or None;
    q_weight, k_weight: [head_dim] or None; cache: one layer's KV, written at `slots` [tokens]; q: [tokens, heads,
    head_dim].
    """
    norms = [None if part is None else table.choose(part) for part in (spec.q_norm, spec.k_norm)]
    rotate = None if spec.rope is None else table.choose(spec.rope)
    sizes = [spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim]

    def run(
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, spec.head_dim)) for part in qkv.split(sizes, dim=-1))
        q = q if norms[0] is None else norms[0].run(q, q_weight)
        k = k if norms[1] is None else norms[1].run(k, k_weight)
        if rotate is not None:
            q, k = rotate.run(q, k, positions, cos_sin)
        attention.write_kv(k, v, cache, slots)
        query: Tensor = q
        return query

    return Kernel(
        name="split + norm + rope + kv write",
        run=run,
        flags=KernelFlags(batch_invariant=True, in_place=("cache",)),
    )


def _angles(spec: RopeSpec, positions: Tensor, cos_sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if spec.axis_sections:
        picked = cos_sin[positions]  # [axes, tokens, rotary_dim]
        cos, sin = (_sections(part, spec.axis_sections) for part in picked.chunk(2, dim=-1))
    else:
        cos, sin = cos_sin[positions[0]].chunk(2, dim=-1)
    return cos.to(dtype).unsqueeze(1), sin.to(dtype).unsqueeze(1)


def _sections(angles: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """[tokens, rotary_dim / 2] of [axes, tokens, rotary_dim / 2]: each axis gives its section, one after the other."""
    parts = angles.split(sizes, dim=-1)
    return torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, spec: RopeSpec) -> Tensor:
    turning, still = x[..., : spec.rotary_dim], x[..., spec.rotary_dim :]
    if spec.interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = turning.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned if still.shape[-1] == 0 else torch.cat((turned, still), dim=-1)


def _stretch(frequencies: Tensor, scaling: RopeScaling, spec: RopeSpec) -> Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "factors":
        return frequencies / torch.tensor(scaling.factors, dtype=torch.float32)
    if scaling.kind == "llama3":
        wavelength = 2 * math.pi / frequencies
        low = scaling.original_max_positions / scaling.low_freq_factor
        high = scaling.original_max_positions / scaling.high_freq_factor
        smooth = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
        stretched = torch.where(wavelength > low, frequencies / scaling.factor, frequencies)
        return torch.where((wavelength <= low) & (wavelength >= high), between, stretched)
    if scaling.kind == "yarn":

        def dim_of(turns: float) -> float:
            return (
                spec.rotary_dim
                * math.log(scaling.original_max_positions / (turns * 2 * math.pi))
                / (2 * math.log(spec.base))
            )

        low_dim = max(math.floor(dim_of(scaling.beta_fast)), 0)
        high_dim = min(math.ceil(dim_of(scaling.beta_slow)), spec.rotary_dim - 1)
        ramp = (torch.arange(spec.rotary_dim // 2, dtype=torch.float32) - low_dim) / max(high_dim - low_dim, 0.001)
        keep = 1 - ramp.clamp(0, 1)
        return frequencies / scaling.factor * (1 - keep) + frequencies * keep
    raise ValueError(f"unknown rope scaling {scaling.kind!r}")
