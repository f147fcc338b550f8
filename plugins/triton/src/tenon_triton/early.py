"""Programmatic dependent launch: a kernel's programs start while the kernel before it still runs.

    kernel before   ==trigger==============| complete
    this kernel           =weights=|.wait..=======          what it reads before `wait` nothing on the queue writes

A kernel launched with `options()` calls `wait` in every program before it reads or writes anything but weights and the
step's inputs, and `trigger` as early as it likes: the next kernel then begins once all programs of this one have begun.
Weights must be complete before the first launch that reads them, as they are after loading, which ends in a
synchronization; the inputs are, since `rows.py` does not trigger. On devices without it the calls are not compiled.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
import triton.language as tl
from triton.runtime import driver

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older triton, or one built for other devices
    gdc_launch_dependents = gdc_wait = None

FIRST_ARCH = 90  # Hopper
OFF = {"EARLY": False}
ON = {"EARLY": True, "launch_pdl": True}


@triton.jit
def wait(EARLY: tl.constexpr):
    """Until everything launched before is complete and visible."""
    if EARLY:
        gdc_wait()


@triton.jit
def trigger(EARLY: tl.constexpr):
    """The next kernel may begin."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def fetch(pointers, EARLY: tl.constexpr):
    """Lines of memory that hold these places, into the level-2 cache: weights of the first tiles, before `wait`."""
    if EARLY:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@cache
def is_supported() -> bool:
    """Whether triton compiles for a device that has it."""
    if gdc_wait is None or os.environ.get("TRITON_INTERPRET") == "1":
        return False
    target = driver.active.get_current_target()
    return target.backend == "cuda" and int(target.arch) >= FIRST_ARCH


def queue_of(device: torch.device) -> int:
    """The queue that kernels of a device are launched on now; 0 where they are interpreted."""
    return 0 if os.environ.get("TRITON_INTERPRET") == "1" else int(driver.active.get_current_stream(device.index or 0))


def options() -> dict[str, bool]:
    """Keyword arguments of a launch: the constant EARLY, and the attribute that goes with it."""
    return ON if is_supported() else OFF
