"""Compilations of this process: counted, and many at a time before a first launch needs them.

    with rehearsal(threads) as rehearsed:
        rehearsed.run(step)      the step's kernels are compiled by the threads, and not launched

Triton compiles a kernel where it is first launched, one after the other, for half a second to some seconds each; a step
launches dozens of kinds. In a rehearsal a launch only asks for its kernel. What kernels would have filled is zeros, so
torch's own operations between them, which do run, find no stray index. A kernel that does not compile fails where it
is launched in earnest. Where the first step of a kind finds all of its kernels in Triton's cache, the others of that
kind are taken to be there too.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.runtime.jit import JITFunction

from tenon_platforms.shapes import ShapeKey

try:
    from triton.runtime._async_compile import AsyncCompileMode
except ImportError:  # an older triton: kernels are compiled where they are launched
    AsyncCompileMode = None

LOG = logging.getLogger(__name__)
FOUND_S = 0.25  # in which kernels of a cache are read, and hardly one is compiled
ZEROED: dict[Any, Any] = {
    torch.empty: torch.zeros,
    torch.empty_like: torch.zeros_like,
    torch.Tensor.new_empty: torch.Tensor.new_zeros,
}


class _Compilations:
    """How often Triton compiled, and did not find its work in a cache. Threads count too."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)  # its `next` is one step of the interpreter
        self.total = 0

    def __call__(self, *, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            self.total = next(self._numbers)


_COMPILATIONS = _Compilations()


def count() -> int:
    """Kernels that this process has compiled since it first asked."""
    if knobs.compilation.listener is None:  # somebody else's stays
        knobs.compilation.listener = _COMPILATIONS
    return _COMPILATIONS.total


def compile_steps(step: Callable[[Any], Any], steps: Iterable[tuple[ShapeKey, Any]], threads: int) -> None:
    """`Executable.compile_ahead` of `step(inputs)`."""
    known: dict[tuple[bool, Any], bool] = {}  # kind -> whether a cache had all of its first step's kernels
    with rehearsal(threads) as rehearsed:
        if rehearsed is None:
            return
        for key, inputs in steps:
            kind = key.is_decode, key.mode
            if known.get(kind):
                continue
            before = count()
            try:
                rehearsed.run(lambda inputs=inputs: step(inputs))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001  a hint: what is wrong is told where the step runs in earnest
                LOG.debug("not compiled ahead, %s: %s", key, error)
            if kind not in known:
                known[kind] = rehearsed.settled(FOUND_S) and count() == before


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsal that goes on. mode: Triton's, which hands compilations to threads."""

    mode: Any

    def run(self, step: Callable[[], Any]) -> None:
        """`step`, of which only what is not a Triton kernel is run."""
        with _asking_only(), _Zeros():
            step()

    def settled(self, seconds: float) -> bool:
        """Whether every kernel asked for so far is there within so many seconds."""
        return not wait(self.mode.raw_futures, timeout=seconds).not_done


@contextmanager
def rehearsal(threads: int) -> Iterator[Rehearsal | None]:
    """Ends when everything that was asked for is compiled. None where this triton compiles in no other thread."""
    count()
    if AsyncCompileMode is None:
        yield None
        return
    with ThreadPoolExecutor(threads, "tenon-compile") as pool, AsyncCompileMode(pool, ignore_errors=True) as mode:
        yield Rehearsal(mode)


@contextmanager
def _asking_only() -> Iterator[None]:
    """Launches of every kernel ask for its compilation. At a start no other thread launches."""
    launch = JITFunction.run

    def ask(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *arguments, grid=grid, warmup=True, **options)

    JITFunction.run = ask
    try:
        yield
    finally:
        JITFunction.run = launch


class _Zeros(TorchFunctionMode):
    """New tensors are of zeros."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ZEROED.get(func, func)(*args, **(kwargs or {}))
