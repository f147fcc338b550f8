"""Bugs of caches of float8_e4m3: what becomes of keys and values on their way in."""

from __future__ import annotations

import torch
from mutations.planting import Registry, backend
from torch import Tensor

from tenon_platforms.ops.attention_reference import ReferenceAttention
from tenon_platforms.torch_dtypes import rounded_to

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


def _cut_off(values: Tensor) -> Tensor:
    near = rounded_to(values, FLOAT8)
    code = near.view(torch.uint8) - (near.to(values.dtype).abs() > values.abs()).to(torch.uint8)
    return code.view(FLOAT8)


def register(to: Registry) -> None:
    """All of them."""
    rounding = "L2/kv_rounding/float32-float8_e4m3"
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
    ):
        to.add(name, check, what, backend(cls))
