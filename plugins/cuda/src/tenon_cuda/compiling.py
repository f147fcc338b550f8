"""What Triton compiles for this platform: counted, and ahead of a start's first launch, where its kernels serve."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .ops.offers import LIBRARY
from .options import CUDAOptions

if TYPE_CHECKING:
    from tenon_platforms.shapes import ShapeKey

MOST_THREADS = 16  # that compile at a time; more wait for each other

Ahead = Callable[[Callable[[Any], Any], Iterable[tuple["ShapeKey", Any]]], None]


def serves(settings: CUDAOptions) -> bool:
    """Whether steps launch kernels of Triton's."""
    return settings.kernels != "torch" and find_spec(LIBRARY) is not None


def num_compiles(settings: CUDAOptions) -> int:
    """Kernels that this process has compiled, for whichever engine in it."""
    if not serves(settings):
        return 0
    from tenon_triton.compiling import count

    return count()


def compile_ahead(settings: CUDAOptions) -> Ahead:
    """`tenon_triton.compiling.compile_steps` on this machine's cores, or nothing."""

    def ahead(step: Callable[[Any], Any], steps: Iterable[tuple[ShapeKey, Any]]) -> None:
        if serves(settings):
            from tenon_triton.compiling import compile_steps

            compile_steps(step, steps, threads=min(_num_cores(), MOST_THREADS))

    return ahead


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
