"""Gated MLPs of few tokens on Hopper in one launch: which go through `persistent_mlp_kernel`, and its launch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tenon_triton import early

from ..capabilities import Arch
from .experimental import kernels_of
from .warpgroups import ARCH

if TYPE_CHECKING:
    from tenon_triton.ops.float8 import Float8Rows
    from tenon_triton.ops.linear import Weight

KERNELS = "persistent_mlp_kernel"
# Measured on an H200 for 4,096 -> 14,336, norm and MLP in a chain of layers with weights of their own, against two or
# three launches: 3 to 6 % less time for 2 to 8 tokens in bfloat16, 4 to 10 % for 1 to 8 in FP8; a whole layer of 16 in
# FP8 takes 2 % less. One token in bfloat16 is level, with its norm in the first product's launch, and so are 16.
TOKENS, FLOAT8_TOKENS = (2, 8), (1, 16)  # the fewest, the most
# What the kernel is written for
LINES = 8  # tokens at a time: whole lines of a product's right side
STEP, DOWN_STEP = 4 * 256, 2 * 256  # bytes of a row that both products take in whole steps, x in four parts
OUTPUTS, GRAIN = 32, 16  # features of the second and of the first product that a program has a multiple of
MOST_PROGRAMS = 256
STAGE = 2 * 64 * 128  # bytes
REST, REST_OF_TOKEN = 2000, 550  # bytes of fast memory for barriers, and for sums that change places
FEWEST_STAGES = 4  # that keep the memory busy
FILLED = 0.9  # of the last round of the second product


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentMLP:
    """`tenon_triton.ops.gated_mlp.FewRows` for one GPU. units: its multiprocessors, shared_bytes: of each.

    counter: see `meetings`; None: another engine has it, and nothing is computed here.
    """

    arch: Arch
    units: int
    shared_bytes: int
    counter: Tensor | None

    def pays(self, tokens: int, gate_up: Weight, down: Weight) -> bool:
        """Whether an MLP of weights that are both in FP8 or both in bfloat16 goes through it."""
        fewest, most = TOKENS if gate_up.scale is None else FLOAT8_TOKENS
        return fewest <= tokens <= most and self.takes(tokens, gate_up, down)

    def takes(self, tokens: int, gate_up: Weight, down: Weight) -> bool:
        """Whether it computes so many tokens of these weights here at all, and fills the device with them."""
        held = down.weight
        kind = torch.bfloat16 if gate_up.scale is None else torch.float8_e4m3fn
        if self.counter is None or self.arch != ARCH or held.dtype != kind:
            return False
        if gate_up.bias is not None or down.bias is not None:
            return False
        return fits(lines_for(tokens), *held.shape, held.element_size(), self.units, self.shared_bytes)

    def run(self, x: Tensor | Float8Rows, gate_up: Weight, down: Weight) -> Tensor:
        """bfloat16 [tokens, hidden] of x [tokens, hidden], quantized where the weights are."""
        kernels = kernels_of(KERNELS)
        assert kernels is not None, "asked before"
        values, x_scale = (x.contiguous(), None) if isinstance(x, Tensor) else x
        (rows, hidden), features = values.shape, down.weight.shape[1]
        lines = lines_for(rows)
        y = torch.empty((rows, hidden), dtype=torch.bfloat16, device=values.device)
        inner = torch.empty((rows, features), dtype=torch.bfloat16, device=values.device)
        quantized = largest = None
        if x_scale is not None:
            quantized = torch.empty((rows, features), dtype=values.dtype, device=values.device)
            largest = torch.empty((self.units, lines), dtype=torch.float32, device=values.device)
        kernels.persistent_mlp_kernel[(self.units,)](
            y,
            kernels.lines(values, lines),
            kernels.lines(gate_up.weight, GRAIN),
            kernels.lines(down.weight, OUTPUTS),
            kernels.lines(inner if quantized is None else quantized, lines),
            inner,
            quantized,
            largest,
            x_scale,
            gate_up.scale,
            down.scale,
            self.counter,
            rows,
            HIDDEN=hidden,
            FEATURES=features,
            TOKENS=lines,
            STAGES=stages_of(lines, hidden * values.element_size(), self.shared_bytes),
            num_warps=4,
            launch_pdl=early.is_supported(),
        )
        return y


@cache
def fits(lines: int, hidden: int, features: int, item: int, units: int, shared_bytes: int) -> bool:
    """Whether the kernel takes such weights, of `item` bytes a value, and every unit has nearly as much to do.

    A program without features of the first product would write before the launch ahead of it is complete.
    """
    if units > MOST_PROGRAMS or hidden * item % STEP or features * item % DOWN_STEP or features < units * GRAIN:
        return False
    rounds = math.ceil(hidden / OUTPUTS / units)
    if hidden < FILLED * rounds * units * OUTPUTS or stages_of(lines, hidden * item, shared_bytes) < FEWEST_STAGES:
        return False
    return kernels_of(KERNELS) is not None


def stages_of(lines: int, row_bytes: int, shared_bytes: int) -> int:
    """Blocks of weights in flight: what x leaves of the fast memory."""
    return (shared_bytes - lines * (row_bytes + REST_OF_TOKEN) - REST) // STAGE


def lines_for(tokens: int) -> int:
    """Lines of the right side of a product, used or not."""
    return -(-tokens // LINES) * LINES
