"""Bugs of caches of one byte: what becomes of keys and values on their way in."""

from __future__ import annotations

import torch
from mutations.planting import Registry, backend
from torch import Tensor

from tenon_platforms.ops.attention_reference import ReferenceAttention
from tenon_platforms.ops.quantized_kv import SCALE_BYTES, dequantize_heads, quantize_heads
from tenon_platforms.torch_dtypes import movable, rounded_to

FLOAT8 = torch.float8_e4m3fn
LAST_TIE = 464.0  # beyond it the nearest value would be the one after the last


class OverflowsToNaN(ReferenceAttention):
    """As a cast that does not saturate."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        key, value = (part.masked_fill(part.abs() > LAST_TIE, torch.nan) for part in (key, value))
        super().write_kv(key, value, cache, slots)


class LosesNaN(ReferenceAttention):
    """As a minimum that takes the number of a number and NaN."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        super().write_kv(key.nan_to_num(nan=448.0), value.nan_to_num(nan=448.0), cache, slots)


class CutsOff(ReferenceAttention):
    """Towards zero, not to the nearest."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        if cache.dtype == FLOAT8:
            key, value = map(_cut_off, (key, value))
        super().write_kv(key, value, cache, slots)


class TiesAway(ReferenceAttention):
    """What lies halfway goes to the greater one."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        super().write_kv(key * (1 + 2**-12), value * (1 + 2**-12), cache, slots)


class ImportsAsItCasts(ReferenceAttention):
    """Canonical blocks of another type do not saturate."""

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        if canonical.dtype != FLOAT8:
            canonical = canonical.masked_fill(canonical.abs() > LAST_TIE, torch.nan)
        super().import_blocks(cache, blocks, canonical)


class Coded(ReferenceAttention):
    """int8 as a vendor codes it: `scale_of` and `codes_of` are what goes wrong."""

    def _stored(self, x: Tensor) -> Tensor:
        if not self.has_scales:
            return super()._stored(x)
        scale = self.scale_of(x.float())
        codes = self.codes_of((x.float() / scale).nan_to_num(0.0, 0.0, 0.0)).clamp(-127, 127).to(torch.int8)
        return movable(torch.cat((codes, scale.view(torch.int8)), dim=-1))

    def scale_of(self, x: Tensor) -> Tensor:
        """float32 [..., 1] of heads [..., dim]."""
        return quantize_heads(x)[..., -SCALE_BYTES:].contiguous().view(torch.float32)

    def codes_of(self, shares: Tensor) -> Tensor:
        """Whole numbers of what is left of values."""
        return shares.round()


class WithoutScales(Coded):
    """As a cast, which is what other types have."""

    def scale_of(self, x: Tensor) -> Tensor:
        return torch.ones_like(x[..., :1])


class CodesCutOff(Coded):
    """Towards zero, not to the nearest."""

    def codes_of(self, shares: Tensor) -> Tensor:
        return shares.trunc()


class OneScaleForAToken(Coded):
    """The heads of a token share the greatest one's scale."""

    def scale_of(self, x: Tensor) -> Tensor:
        return super().scale_of(x).amax(dim=-2, keepdim=True).expand(*x.shape[:-1], 1)


class ScaleOfHalf(Coded):
    """In float16, which small heads have no scale in."""

    def scale_of(self, x: Tensor) -> Tensor:
        return super().scale_of(x).half().float()


class ScaleOfBfloat16(Coded):
    """With eight bits, of which codes are made too."""

    def scale_of(self, x: Tensor) -> Tensor:
        return super().scale_of(x).bfloat16().float()


class ScaleOfSixteen(Coded):
    """Of a head's first sixteen values, which a tiny model has no more of."""

    def scale_of(self, x: Tensor) -> Tensor:
        return super().scale_of(x[..., :16])


class NoNumberIsZero(Coded):
    """A head that is not finite is coded as if it were zero."""

    def scale_of(self, x: Tensor) -> Tensor:
        return super().scale_of(x).nan_to_num(0.0, 0.0, 0.0)


class CopiesCodesOnly(ReferenceAttention):
    """A copied block has the scales of what was there before."""

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        for cache in caches:
            cache[:, target.long(), ..., : self.spec.head_dim] = cache[:, source.long(), ..., : self.spec.head_dim]


class ImportsBits(ReferenceAttention):
    """Canonical blocks are taken for codes of the scale that is there."""

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        super().import_blocks(cache, blocks, canonical)
        if self.has_scales:
            codes = canonical.float().nan_to_num(0.0).round().clamp(-127, 127).to(torch.int8)
            cache[:, blocks.long(), ..., : self.spec.head_dim] = codes.transpose(0, 1)


class ReadsWithTheKeysScale(ReferenceAttention):
    """Values are read with the scales of their keys."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, sinks: Tensor | None) -> Tensor:
        if self.has_scales:
            keys, values = (quantize_heads(part) for part in (k, v))
            v = dequantize_heads(torch.cat((values[..., :-SCALE_BYTES], keys[..., -SCALE_BYTES:]), dim=-1))
        return super()._attend(q, k, v, visible, sinks)


def _cut_off(values: Tensor) -> Tensor:
    near = rounded_to(values, FLOAT8)
    code = near.view(torch.uint8) - (near.to(values.dtype).abs() > values.abs()).to(torch.uint8)
    return code.view(FLOAT8)


def register(to: Registry) -> None:
    """All of them."""
    rounding, coding = "L2/kv_rounding/float32-float8_e4m3", "L2/kv_rounding/float32-int8"
    copying, reading = "L2/kv_cache/float32-kv-int8", "L2/attention/float32-kv-int8"
    for name, check, what, cls in (
        ("e4m3-overflows", rounding, "a cast makes NaN of what lies beyond", OverflowsToNaN),
        ("e4m3-nan-lost", rounding, "a minimum makes a number of NaN", LosesNaN),
        ("e4m3-cut-off", rounding, "rounded towards zero", CutsOff),
        ("e4m3-ties-away", rounding, "ties rounded away from zero", TiesAway),
        ("e4m3-import", rounding, "imported blocks do not saturate", ImportsAsItCasts),
        (
            "e4m3-cut-off-fused",
            "L2/qk_norm_rope_kv_write/float32-normed-float8_e4m3",
            "a composite that rounds towards zero",
            CutsOff,
        ),
        ("int8-cast", coding, "keys and values are cast, without scales", WithoutScales),
        ("int8-cut-off", coding, "codes rounded towards zero", CodesCutOff),
        ("int8-token-scale", coding, "one scale for all heads of a token", OneScaleForAToken),
        ("int8-half-scale", coding, "scales kept in float16", ScaleOfHalf),
        ("int8-bfloat16-scale", coding, "scales kept in bfloat16", ScaleOfBfloat16),
        ("int8-scale-of-16", f"{coding}-head-80", "a scale of a head's first sixteen values", ScaleOfSixteen),
        ("int8-nan-lost", coding, "a head that is not finite becomes zeros", NoNumberIsZero),
        ("int8-import", copying, "imported blocks keep the scales that were there", ImportsBits),
        ("int8-copied-codes", copying, "a copied block keeps its scales", CopiesCodesOnly),
        ("int8-keys-scale", reading, "values read with their keys' scales", ReadsWithTheKeysScale),
        (
            "int8-cut-off-fused",
            "L2/qk_norm_rope_kv_write/float32-normed-int8",
            "a composite that rounds towards zero",
            CodesCutOff,
        ),
    ):
        to.add(name, check, what, backend(cls))
