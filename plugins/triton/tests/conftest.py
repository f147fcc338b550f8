"""The kernels need triton, which not every machine has; the root conftest.py has turned on its interpreter.

Half of an interpreted kernel's time goes into exchanging triton's functions for interpreted ones, anew at every call
of one kernel by another. Here it is done once a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("triton") else ["*"]


@pytest.fixture(scope="session", autouse=True)
def _exchanged_once() -> Iterator[None]:
    import triton.language as tl
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_patch_lang") or not hasattr(interpreter, "_LangPatchScope"):  # another triton
        yield
        return
    exchange = interpreter._patch_lang

    def once(fn: Any) -> Any:
        used = [module for module in fn.__globals__.values() if module is tl or module is tl.core]
        done = bool(used) and all(module.static_print is print for module in used)
        return interpreter._LangPatchScope() if done else exchange(fn)

    interpreter._patch_lang = once
    yield
    interpreter._patch_lang = exchange
