"""Gated MLPs of many rows on Hopper: which first products go through `warpgroup_gated_kernel`, and its launch.

Its programs walk over tiles, one program a unit, so a launch takes as many rounds as the fullest unit has tiles. The
last round is the loss: a launch pays where its rows fill nearly all of every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import No
from tenon_platforms.ops.mlp import GatedMLPSpec

from ..capabilities import Arch
from .experimental import kernels_of
from .warpgroups import ARCH, REGISTERS

KERNELS = "warpgroup_gated_kernel"
TILE = 128  # rows, and features of the output, of one tile
BLOCK, FEWEST_STEPS = 64, 3  # columns at a time; the kernel walks over three such blocks or more
UNIT = 8  # elements of bfloat16 in 16 bytes: rows that are copied in bulk begin at multiples of it
# Measured on an H200 (torch 2.11, cuBLAS 13) for 4,096 -> 14,336, against the product and the activation one after the
# other. Of 1,024 to 8,192 rows, whose rounds are 97 to 99 % full, it takes 4 to 6 % less time; of 512, 85 % full, 2.5 %
# more; of 256, 85 % full too, 3 % less, as the library's own rounds are not full either.
FEWEST_ROWS = 512
FILLED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class WarpgroupGated:
    """`tenon_triton.ops.gated_mlp.ManyRows` for one GPU. units: its multiprocessors."""

    arch: Arch
    units: int

    def refused(self, spec: GatedMLPSpec) -> No | None:
        """Why the kernel does not compute this here, or None. Weights are taken as they are prepared: not in FP8."""
        product = spec.gate_up
        if self.arch != ARCH:
            return No(f"is written for {ARCH}, not {self.arch}")
        if product.dtype != DType.BFLOAT16 or spec.down.dtype != DType.BFLOAT16:
            return No(f"multiplies bfloat16, not {product.dtype} and {spec.down.dtype}", "--dtype bfloat16")
        if spec.activation != "silu":
            return No(f"ends with silu, not {spec.activation}")
        if product.bias:
            return No("adds no bias to the first product")
        if product.in_features % UNIT or spec.down.in_features % UNIT:
            return No(f"features must be multiples of {UNIT}, not {product.in_features} and {spec.down.in_features}")
        if kernels_of(KERNELS) is None:
            return No("this Triton has no warp groups", "pip install --upgrade triton")
        return None

    def pays(self, tokens: int, features: int) -> bool:
        """Whether so many rows of so many features each fill the rounds of its programs."""
        if tokens < FEWEST_ROWS:
            return False
        rounds = math.ceil(math.ceil(tokens / TILE) * math.ceil(features / TILE) / self.units)
        return tokens * features >= FILLED * rounds * self.units * TILE * TILE

    def run(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """silu(x gate^T) * (x up^T), [tokens, features]; x: [tokens, k]; weight: [2 * features, k], gate before up."""
        kernels = kernels_of(KERNELS)
        assert kernels is not None, "asked before"
        x = x.contiguous()
        (rows, k), features = x.shape, weight.shape[0] // 2
        if out is None:
            out = torch.empty((rows, features), dtype=x.dtype, device=x.device)
        tiles = math.ceil(rows / TILE) * math.ceil(features / TILE)
        kernels.warpgroup_gated_kernel[(min(tiles, self.units),)](
            *kernels.descriptors(out, x, weight),
            rows,
            features,
            max(FEWEST_STEPS, math.ceil(k / BLOCK)),
            num_warps=4,
            maxnreg=REGISTERS,
        )
        return out
