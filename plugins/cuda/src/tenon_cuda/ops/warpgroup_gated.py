"""Gated MLPs of many rows on Hopper: which first products go through `warpgroup_gated_kernel`, and its launch.

Its programs walk over tiles, one program a unit, so a launch takes as many rounds as the fullest unit has tiles. The
last round is the loss: a launch pays where its rows fill nearly all of every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import No
from tenon_platforms.ops.mlp import GatedMLPSpec

from ..capabilities import Arch
from .experimental import kernels_of
from .warpgroups import ARCH, REGISTERS

if TYPE_CHECKING:
    from tenon_triton.ops.float8 import Float8Rows
    from tenon_triton.ops.linear import Weight

KERNELS = "warpgroup_gated_kernel"
TILE = 128  # rows, and features of the output, of one tile
LINE, FEWEST_STEPS = 128, 3  # bytes of a row at a time; the kernel walks over three such lines or more
UNIT = 16  # bytes: rows that are copied in bulk begin at multiples of it
# Measured on an H200 (torch 2.11, cuBLAS 13) for 4,096 -> 14,336, against the product and the activation one after the
# other. Of 1,024 to 8,192 rows, whose rounds are 97 to 99 % full, it takes 4 to 6 % less time; of 512, 85 % full, 2.5 %
# more; of 256, 85 % full too, 3 % less, as the library's own rounds are not full either. In FP8, followed by a launch
# that quantizes, against the product and the activation that does: 2 to 5 % less from 1,024 rows on, of 512 1 % more.
FEWEST_ROWS, FEWEST_FLOAT8_ROWS = 512, 1024
FILLED = 0.9
# Rows of tiles walked together: with 16 and not 8, 8,192 rows take 2 % less time in bfloat16, and 4 % in FP8; 4,096 in
# bfloat16 take 2 % more.
GROUP, MANY_GROUP, MANY_ROWS = 8, 16, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class WarpgroupGated:
    """`tenon_triton.ops.gated_mlp.ManyRows` for one GPU. units: its multiprocessors."""

    arch: Arch
    units: int

    def refused(self, spec: GatedMLPSpec, *, float8: bool = False) -> No | None:
        """Why the kernel does not compute this here, or None. float8: the weights are prepared in FP8."""
        product, unit = spec.gate_up, UNIT if float8 else UNIT // 2
        if self.arch != ARCH:
            return No(f"is written for {ARCH}, not {self.arch}")
        if product.dtype != DType.BFLOAT16 or spec.down.dtype != DType.BFLOAT16:
            return No(f"takes activations of bfloat16, not {product.dtype} and {spec.down.dtype}", "--dtype bfloat16")
        if spec.activation != "silu":
            return No(f"ends with silu, not {spec.activation}")
        if product.bias:
            return No("adds no bias to the first product")
        if product.in_features % unit or spec.down.in_features % unit:
            return No(f"features must be multiples of {unit}, not {product.in_features} and {spec.down.in_features}")
        if kernels_of(KERNELS) is None:
            return No("this Triton has no warp groups", "pip install --upgrade triton")
        return None

    def pays(self, tokens: int, features: int, *, float8: bool = False) -> bool:
        """Whether so many rows of so many features each fill the rounds of its programs."""
        if tokens < (FEWEST_FLOAT8_ROWS if float8 else FEWEST_ROWS):
            return False
        rounds = math.ceil(math.ceil(tokens / TILE) * math.ceil(features / TILE) / self.units)
        return tokens * features >= FILLED * rounds * self.units * TILE * TILE

    def run(self, x: Tensor | Float8Rows, weight: Weight, out: Tensor | None = None) -> Tensor:
        """silu(x gate^T) * (x up^T), bfloat16 [tokens, features]; weight: [2 * features, k], gate before up.

        x: [tokens, k]; quantized where the weight is.
        """
        kernels = kernels_of(KERNELS)
        assert kernels is not None, "asked before"
        values, x_scale = (x.contiguous(), None) if isinstance(x, Tensor) else x
        (rows, k), features = values.shape, weight.weight.shape[0] // 2
        if out is None:
            out = torch.empty((rows, features), dtype=torch.bfloat16, device=values.device)
        tiles = math.ceil(rows / TILE) * math.ceil(features / TILE)
        kernels.warpgroup_gated_kernel[(min(tiles, self.units),)](
            *kernels.descriptors(out, values, weight.weight),
            x_scale,
            weight.scale,
            rows,
            features,
            max(FEWEST_STEPS, math.ceil(k * values.element_size() / LINE)),
            GROUP=GROUP if weight.scale is None and rows < MANY_ROWS else MANY_GROUP,
            num_warps=4,
            maxnreg=REGISTERS,
        )
        return out
