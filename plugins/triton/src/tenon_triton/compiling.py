"""Compilations of this process: counted, and many at a time before a first launch needs them.

    compile_steps(step, steps, threads)      each step's kernels are compiled by the threads, and not launched

Triton compiles a kernel where it is first launched, one after the other, for half a second to some seconds each; a step
launches dozens of kinds. In a rehearsal this thread's launches only ask for their kernels; those of other threads are
launched as ever. What kernels would have filled is zeros, so torch's own operations between them, which do run, find no
stray index. What does not compile here is forgotten, and compiled again, and told of, where it is launched in earnest.
Steps come the largest first: where a kind's first one finds all of its kernels in Triton's cache, smaller ones are
taken to be there.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.runtime.jit import JITFunction

from tenon_platforms.shapes import ShapeKey

try:
    from triton.runtime._async_compile import FutureKernel, active_mode
except ImportError:  # a triton that arranges this in another way: kernels are compiled where they are launched
    FutureKernel = active_mode = None

FEW_TOKENS = 4  # as `ops.gemv.MOST_TOKENS`: `ops` imports this module, so that a test holds them equal
FOUND_S = 0.25  # in which kernels of a cache are read, and hardly one is compiled
LAUNCH = JITFunction.run
ZEROED: dict[Any, Any] = {
    torch.empty: torch.zeros,
    torch.empty_like: torch.zeros_like,
    torch.Tensor.new_empty: torch.Tensor.new_zeros,
}


class _Compilations:
    """How often Triton compiled, and did not find its work in a cache: Triton's listener, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._other: Any = None  # who listened before
        self.total = 0

    def listen(self) -> None:
        """From now on, beside whoever does already."""
        with self._lock:
            if knobs.compilation.listener is not self:
                self._other, knobs.compilation.listener = knobs.compilation.listener, self

    def __call__(self, *, cache_hit: bool, **facts: Any) -> None:
        if not cache_hit:
            with self._lock:
                self.total += 1
        if self._other is not None:
            self._other(cache_hit=cache_hit, **facts)


_COMPILATIONS = _Compilations()


def count() -> int:
    """Kernels that this process, whoever in it, has compiled since it first asked."""
    _COMPILATIONS.listen()
    return _COMPILATIONS.total


def is_rehearsal() -> bool:
    """Whether this thread's launches only ask for their kernels: where a way depends on the very number of tokens, of
    which a rehearsal has a few, both are to be asked for.
    """
    return getattr(_PATCH.local, "functions", None) is not None


def compile_steps(step: Callable[[Any], Any], steps: Iterable[tuple[ShapeKey, Any]], threads: int) -> None:
    """`Executable.compile_ahead` of `step(inputs)`. Raises what a step, or making its inputs, raises."""
    if active_mode is None:
        return
    # in a context of its own, which is gone with it however it ends
    contextvars.copy_context().run(_rehearse, step, steps, threads)


def _rehearse(step: Callable[[Any], Any], steps: Iterable[tuple[ShapeKey, Any]], threads: int) -> None:
    is_known: dict[tuple[Any, ...], bool] = {}  # kind -> whether a cache had all of its first step's kernels
    pool = ThreadPoolExecutor(threads, "tenon-compile")
    asked = _Asked(pool=pool)
    try:
        active_mode.set(asked)
        for key, inputs in steps:
            kind = _kind_of(key)
            if is_known.get(kind):
                continue
            before = count()
            with asked.asking(), _Zeros():
                step(inputs)
            if kind not in is_known:
                is_known[kind] = asked.settled(FOUND_S) and count() == before
        asked.settled(None)
    finally:
        pool.shutdown(cancel_futures=True)
        asked.finish()


def _kind_of(key: ShapeKey) -> tuple[Any, ...]:
    """What tells whether the kernels of a step are taken to be where those of a larger one are."""
    has_decodes = key.static and key.rows > 1 and not key.is_decode  # beside a prompt of a captured step?
    is_few = key.tokens <= FEW_TOKENS and not key.is_decode  # whose products have kernels of their own
    return key.is_decode, has_decodes, is_few, key.static, key.mode


@dataclass(slots=True)
class _Asked:
    """What Triton hands compilations to in this context (`AsyncCompileMode` has no say in how failures end)."""

    pool: ThreadPoolExecutor
    kernels: dict[Any, FutureKernel] = field(default_factory=dict)
    functions: set[JITFunction] = field(default_factory=set)

    def submit(self, key: Any, compile_it: Callable[[], Any], finish: Callable[[Any], None]) -> FutureKernel:
        """Triton's call."""
        if key not in self.kernels:
            self.kernels[key] = FutureKernel(finish, self.pool.submit(compile_it))
        return self.kernels[key]

    @contextmanager
    def asking(self) -> Iterator[None]:
        """This thread's launches ask for kernels."""
        _PATCH.take()
        _PATCH.local.functions = self.functions
        try:
            yield
        finally:
            _PATCH.local.functions = None
            _PATCH.give_back()

    def settled(self, seconds: float | None) -> bool:
        """Whether every kernel asked for so far is there within so many seconds, and none failed."""
        futures = [kernel.future for kernel in self.kernels.values()]
        return not wait(futures, seconds).not_done and not any(one.exception() for one in futures)

    def finish(self) -> None:
        """Kernels take their places; those that failed, or were given up, leave them to another attempt."""
        for kernel in self.kernels.values():
            if not kernel.future.cancelled() and kernel.future.exception() is None:
                kernel.result()
        for function in self.functions:
            for kept, *_ in function.device_caches.values():
                for key, held in list(kept.items()):
                    if isinstance(held, FutureKernel) and held.kernel is None:
                        del kept[key]


class _Patch:
    """`JITFunction.run` while somebody rehearses. local.functions: of a thread that does, else None or absent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self.local = threading.local()

    def take(self) -> None:
        with self._lock:
            self._users += 1
            JITFunction.run = _ask_or_launch

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                JITFunction.run = LAUNCH


_PATCH = _Patch()


def _ask_or_launch(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    functions = getattr(_PATCH.local, "functions", None)
    if functions is not None:
        functions.add(self)
        warmup = True
    return LAUNCH(self, *arguments, grid=grid, warmup=warmup, **options)


class _Zeros(TorchFunctionMode):
    """`empty`, `empty_like` and `new_empty` are of zeros; our steps make tensors in no other way."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in ZEROED:
            named.pop("memory_format", None)
        return ZEROED.get(func, func)(*args, **named)
