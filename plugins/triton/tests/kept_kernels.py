"""Compiles two kernels for an H200, kept in a folder, and prints what it took: `kept_kernels.py FOLDER [read-only]`.

A process of its own: interpreted kernels and compiled ones exclude each other.
    {"compiled": kernels that no cache had, "machine_code": bytes of both}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tenon_triton import compiling, kernel_cache

TARGET = GPUTarget("cuda", 90, 32)


@triton.jit
def double(x, size: triton.language.constexpr):
    """x [size] = 2 x."""
    at = x + triton.language.arange(0, size)
    triton.language.store(at, 2.0 * triton.language.load(at))


def main() -> None:
    """One run."""
    folder, access = sys.argv[1], os.access

    def read_only(path: Any, mode: int, **others: Any) -> bool:
        return access(path, mode, **others) and not (mode & os.W_OK and str(path) == folder)

    with patch.object(os, "access", read_only if "read-only" in sys.argv else access):
        kernel_cache.keep_in(folder)
    compiling.count()
    made = [
        triton.compile(
            ASTSource(fn=double, signature={"x": "*fp32", "size": "constexpr"}, constexprs={(1,): size}), TARGET
        )
        for size in (128, 256)
    ]
    code = [one.asm["cubin"] for one in made]
    print(json.dumps({"compiled": compiling.count(), "machine_code": [len(one) for one in code]}))


if __name__ == "__main__":
    main()
