"""Rehearses steps for a device that is not there, and prints what was compiled: `python rehearse.py FOLDER [alone]`.

A process of its own, since the interpreter of the other tests and the compiler exclude each other. FOLDER: Triton's
cache. Tensors are the CPU's: a launch in earnest would fail.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import Any

os.environ["TRITON_CACHE_DIR"] = sys.argv[1]

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

if len(sys.argv) > 2:
    sys.modules["triton.runtime._async_compile"] = None  # type: ignore[assignment]

from tenon_platforms.shapes import GREEDY, ShapeKey
from tenon_triton.compiling import LAUNCH, compile_steps, count, is_rehearsal
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


def step_of(seen: list[int]) -> Any:
    def step(tokens: int) -> Any:
        x = torch.ones(tokens, 64, dtype=torch.bfloat16)
        wide = gemv(x, torch.ones(128, 64, dtype=torch.bfloat16), Gemv(block=64)) if tokens <= 4 else x
        seen.append(int(torch.arange(8)[mlp.multiply(wide, "silu")[0].long()].sum()))  # kernels' results are indices
        return wide

    return step


def steps(*keys: ShapeKey) -> Any:
    return ((key, key.tokens) for key in keys)


def outcome(call: Any) -> str:
    """The name of what it raised, or "nothing"."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001  whatever it is, its name is printed
        return type(error).__name__
    return "nothing"


def in_a_thread(call: Any) -> str:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(outcome(call)))
    thread.start()
    thread.join()
    return found[0]


def counted() -> None:
    """Counts after each rehearsal, and what a step saw."""
    seen: list[int] = []
    step = step_of(seen)
    compile_steps(step, steps(key_of(1), key_of(2), key_of(64, prompt=True)), threads=2)
    print("first", count(), len(seen), set(seen))
    before = len(seen)
    compile_steps(step, steps(key_of(1), key_of(2), key_of(4)), threads=2)
    print("again", count(), len(seen) - before)
    print("launched", outcome(lambda: step(1)) != "nothing")


def interrupted() -> None:
    """However a rehearsal ends, the next one and launches in earnest are as ever."""
    step = step_of([])

    def broken(error: BaseException) -> Any:
        yield key_of(1), 1
        raise error

    print("error", outcome(lambda: compile_steps(step, broken(ValueError("inputs")), threads=2)))
    print("interrupt", outcome(lambda: compile_steps(step, broken(KeyboardInterrupt()), threads=2)))
    before = count()
    compile_steps(step, steps(key_of(3)), threads=2)
    print("after", count() > before, JITFunction.run is LAUNCH)


def beside_others() -> None:
    """Another thread's launches are launches, which a device that is not there refuses."""
    found: list[str] = []
    told = [is_rehearsal()]

    def step(tokens: int) -> None:
        x = torch.ones(tokens, 32, dtype=torch.bfloat16)
        mlp.multiply(x, "silu")
        found.append(in_a_thread(lambda: mlp.multiply(x, "silu")))
        told.append(is_rehearsal())

    compile_steps(step, steps(key_of(1)), threads=2)
    print("beside", found[0] != "nothing")
    print("told", *told, is_rehearsal())


def failed_once() -> None:
    """A compilation that fails in a rehearsal is tried again in earnest."""
    tries: list[int] = []
    kernel, real = mlp._activation_mul, mlp._activation_mul.compile

    def flaky(*arguments: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no space left")
        return real(*arguments, **options)

    kernel.compile = flaky
    call = partial(mlp.multiply, torch.ones(1, 16, dtype=torch.bfloat16), "silu")
    compile_steps(lambda inputs: call(), steps(key_of(1)), threads=2)
    print("tries", len(tries), outcome(call) != "OSError", len(tries))
    kernel.compile = real


def heard() -> None:
    """Who listened to Triton before goes on hearing."""
    heard: list[bool] = []
    knobs.compilation.listener = lambda cache_hit, **facts: heard.append(cache_hit)
    before = count()
    compile_steps(lambda inputs: mlp.multiply(torch.ones(1, 8), "relu"), steps(key_of(1)), threads=2)
    print("heard", len(heard), count() - before)


def main() -> None:
    """Everything, in turn; or counts alone, with a triton that hands no compilations over."""
    driver.set_active(Driver())
    counted()
    if len(sys.argv) > 2:
        return
    interrupted()
    beside_others()
    failed_once()
    heard()


if __name__ == "__main__":
    main()
