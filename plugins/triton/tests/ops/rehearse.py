"""Rehearses steps for a device that is not there, and prints what was compiled: `python rehearse.py FOLDER`.

A process of its own, since the interpreter of the other tests and the compiler exclude each other. FOLDER: Triton's
cache. Tensors are the CPU's: a launch in earnest would fail.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["TRITON_CACHE_DIR"] = sys.argv[1]

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tenon_platforms.shapes import GREEDY, ShapeKey
from tenon_triton.compiling import compile_steps, count
from tenon_triton.ops import mlp
from tenon_triton.ops.gemv import gemv
from tenon_triton.ops.linear_table import Gemv


class Driver:
    """Of a device that compiles and does not run."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def key_of(tokens: int, *, prompt: bool = False) -> ShapeKey:
    return ShapeKey(
        tokens=tokens, rows=1 if prompt else tokens, logits=1, max_query=tokens if prompt else 1, blocks=0, mode=GREEDY
    )


def main() -> None:
    """Counts after each rehearsal, then what a step saw."""
    driver.set_active(Driver())
    seen: list[int] = []

    def step(tokens: int) -> Any:
        x = torch.ones(tokens, 64, dtype=torch.bfloat16)
        if tokens == 99:
            raise ValueError("a step that cannot be rehearsed")
        wide = gemv(x, torch.ones(128, 64, dtype=torch.bfloat16), Gemv(block=64)) if tokens <= 4 else x
        seen.append(int(torch.arange(8)[mlp.multiply(wide, "silu")[0].long()].sum()))  # kernels' results are indices
        return wide

    def steps(*keys: ShapeKey) -> Any:
        return ((key, key.tokens) for key in keys)

    compile_steps(step, steps(key_of(1), key_of(2), key_of(99), key_of(64, prompt=True)), threads=2)
    print("first", count(), len(seen), set(seen))
    before = len(seen)
    compile_steps(step, steps(key_of(1), key_of(2), key_of(4)), threads=2)
    print("again", count(), len(seen) - before)
    try:
        step(1)
    except Exception as error:  # noqa: BLE001  whatever a launch without a device raises
        print("launched", type(error).__name__)


if __name__ == "__main__":
    main()
