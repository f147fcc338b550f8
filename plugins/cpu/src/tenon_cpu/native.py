"""The native library, loaded with ctypes: where it lies, whether it fits, its instruction set and its threads.

Knows no kernel: those declare their functions through `function` beside their offers. A call costs about a microsecond.
Torch-free. Without the library (no compiler at install time) everything runs on torch's kernels, and `why_not` says so.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tenon_platforms.errors import ConfigError, DeviceError, PluginError

ABI = 1  # TENON_CPU_ABI of include/tenon_cpu.h
ISAS = ("portable", "avx2", "avx512", "avx512_vnni", "amx")  # enum tenon_isa
DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # enum tenon_dtype
NAME = {"darwin": "libtenon_cpu.dylib", "win32": "tenon_cpu.dll"}.get(sys.platform, "libtenon_cpu.so")
SOURCES = Path(__file__).parents[2] / "native"  # in a checkout
SPIN_US = 200

Function = Any  # a ctypes function pointer


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The library, or None where this installation has none. PluginError: it is there and does not fit."""
    file = Path(__file__).with_name(NAME)
    if not file.is_file():
        return None
    try:
        loaded = ctypes.CDLL(str(file))
    except OSError as error:
        raise PluginError(f"{file} cannot be loaded: {error}", remedy="install tenon-cpu again") from error
    found = loaded.tenon_cpu_abi()
    if found != ABI:
        raise PluginError(
            f"{file} has ABI {found}, this tenon-cpu needs {ABI}",
            remedy="build it again: `make native` in a checkout, or install tenon-cpu again",
        )
    refuse_stale(loaded, file, SOURCES)
    loaded.tenon_cpu_status_text.restype = ctypes.c_char_p
    return loaded


def refuse_stale(loaded: ctypes.CDLL, file: Path, sources: Path) -> None:
    """PluginError where `loaded` was not built from `sources`, a checkout's; nothing where there are none (a wheel)."""
    if not (sources / "CMakeLists.txt").is_file() or not (sources / "src").is_dir():
        return
    wanted, found = sources_hash(sources), "ones older than this check"
    if hasattr(loaded, "tenon_cpu_sources"):
        loaded.tenon_cpu_sources.restype = ctypes.c_char_p
        found = loaded.tenon_cpu_sources().decode()
    if found != wanted:
        raise PluginError(
            f"{file} was not built from the sources beside it, it may compute something else: built from"
            f" {found}, {sources} has {wanted}",
            remedy="build it again: `make native`",
        )


def sources_hash(sources: Path) -> str:
    """What sources_hash.cmake computes of the folder `native`: SHA-256 over "path SHA-256" of its files, by path."""
    files = [path for kind in ("h", "cpp", "inl") for path in (sources / "src").rglob(f"*.{kind}")]
    files += [*(sources / "include").rglob("*.h"), sources / "CMakeLists.txt"]
    lines = (
        f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for name, path in sorted((path.relative_to(sources).as_posix(), path) for path in files)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def why_not() -> str | None:
    """Why there are no native kernels, or None where there are."""
    if library() is None:
        return (
            "tenon-cpu was installed without a C++ compiler, its native kernels are missing: install g++ and then"
            " tenon-cpu again (`make native` in a checkout)"
        )
    return None


def function(name: str, *arguments: Any) -> Function:
    """A function of the library by name, with its ctypes argument types; raises where the library is missing."""
    loaded = library()
    if loaded is None:
        raise PluginError(f"no native function {name}", remedy=why_not() or "")
    found = getattr(loaded, name)
    found.argtypes = arguments
    found.restype = ctypes.c_int
    return found


def check(status: int, what: str) -> None:
    """Raise DeviceError where a native call did not succeed. what: the call, for the message."""
    if status:
        loaded = library()
        assert loaded is not None
        raise DeviceError(f"{what}: {loaded.tenon_cpu_status_text(status).decode()}")


def best_isa() -> str:
    """The widest instruction set that this CPU, system and build have."""
    return ISAS[function("tenon_cpu_isa_best")()]


def current_isa() -> str:
    """The instruction set in use."""
    return ISAS[function("tenon_cpu_isa")()]


def set_isa(name: str) -> None:
    """Use `name` from now on ("auto": the best). ConfigError where this machine cannot run it."""
    number = -1 if name == "auto" else ISAS.index(name)
    if function("tenon_cpu_isa_set", ctypes.c_int)(number):
        raise ConfigError(
            f"--platform-opt cpu.isa={name}: this machine runs {best_isa()} at most",
            remedy=f"choose one of auto, {', '.join(ISAS[: ISAS.index(best_isa()) + 1])}",
        )


def set_threads(threads: int, cores: Sequence[int] = (), spin_us: int = SPIN_US) -> None:
    """Run native kernels on `threads` threads, the caller among them; workers are bound to cores[1:] where given."""
    bound = (ctypes.c_int32 * threads)(*cores[:threads]) if len(cores) >= threads else None
    call = function("tenon_cpu_threads_set", ctypes.c_int, ctypes.POINTER(ctypes.c_int32), ctypes.c_int)
    check(call(threads, bound, spin_us), f"starting {threads} threads")


def num_threads() -> int:
    """Threads of a native kernel."""
    return int(function("tenon_cpu_threads")())
