"""Compiles every kernel ahead of time, no device needed: `python ahead_of_time.py cuda:90 [NAME ...]`.

A process of its own, since the interpreter of the other tests and the compiler exclude each other. Prints a line a
kernel: its name, warps, bytes of shared memory, and how many registers are spilled where the target's tools tell.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from kernels_to_compile import KERNELS, Entry
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

from tenon_triton.early import FIRST_ARCH


def target_of(text: str) -> GPUTarget:
    """ "cuda:90" or "hip:gfx942"."""
    backend, _, arch = text.partition(":")
    return GPUTarget(backend, int(arch), 32) if backend == "cuda" else GPUTarget(backend, arch, 64)


def has_early_launch(target_name: str) -> bool:
    """Whether kernels wait for the ones before them by themselves, as `tenon_triton.early` says."""
    backend, _, arch = target_name.partition(":")
    return backend == "cuda" and int(arch) >= FIRST_ARCH


def source_of(entry: Entry, *, early: bool) -> ASTSource:
    """The kernel specialized as the entry says: types, constants; pointers and whole sizes divide by 16."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    unspecialized = set(entry.kernel.do_not_specialize or ())
    for index, parameter in enumerate(entry.kernel.params):
        name = parameter.name
        value = early if name == "EARLY" else entry.arguments[name]
        if parameter.is_constexpr or value is None:
            signature[name] = "constexpr"
            constants[(index,)] = value
            continue
        signature[name] = value
        if (value.startswith("*") or value == "i32") and name not in unspecialized:
            attributes[(index,)] = [["tt.divisibility", 16]]
    make = GluonASTSource if isinstance(entry.kernel, GluonJITFunction) else ASTSource
    return make(fn=entry.kernel, signature=signature, constexprs=constants, attrs=attributes)


def spills(compiled: Any) -> str:
    """Registers spilled, from the machine code's resource lines; "?" where no tool tells."""
    if "amdgcn" in compiled.asm:
        found = re.search(r"\.vgpr_spill_count:\s*(\d+)", compiled.asm["amdgcn"])
        return found.group(1) if found else "?"
    tool = shutil.which("cuobjdump") or next(Path(triton.__file__).parent.rglob("cuobjdump"), None)
    if tool is None or "cubin" not in compiled.asm:
        return "?"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=False).stdout
    found = re.search(r"LOCAL:(\d+)", text)
    return found.group(1) if found else "?"


def main(target_name: str, names: list[str]) -> int:
    """Compile the named kernels, or all that the target has; 1 where one failed."""
    target, failed = target_of(target_name), False
    for name, entry in KERNELS.items():
        if (names and name not in names) or not entry.fits(target_name):
            continue
        source = source_of(entry, early=has_early_launch(target_name))
        try:
            compiled = triton.compile(source, target=target, options=entry.options)
        except Exception as error:  # noqa: BLE001  the caller reads which kernel failed
            print(f"{name} FAILED: {error.__cause__ or error}", flush=True)
            failed = True
            continue
        shared = compiled.metadata.shared
        print(f"{name} warps={entry.warps} shared={shared} spills={spills(compiled)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
