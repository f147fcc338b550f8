"""Builds the library of `native/` with g++ against the torch that is installed, once: about half a minute.

torch's C++ interface changes with every release, so a wheel cannot carry the library: it carries the source. What was
built is kept in the user's cache folder under a name that tells torch's version and the source, and used again. It is
code: the folder must be the user's own. Needs a C++ compiler and torch's headers, not Python's.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tenon_platforms.errors import PluginError

LOG = logging.getLogger(__name__)
SOURCES = Path(__file__).with_name("native")
UNITS = ("memory", "device", "ops")
COMPILERS = ("g++", "c++", "clang++")
FLAGS = ("-O1", "-std=c++20", "-fPIC", "-fvisibility=hidden")
TIMEOUT_S = 900


def library_file() -> Path:
    """The built library, built now where it is not there. PluginError: there is no compiler, or it failed."""
    folder = cache_folder()
    file = folder / f"libtenon_sim-{fingerprint()}.so"
    if file.is_file():
        return file
    with _locked(folder / "lock"):
        if not file.is_file():  # another process built it meanwhile
            build(file)
    return file


def fingerprint() -> str:
    """Names what the library depends on."""
    digest = hashlib.sha256(" ".join((torch.__version__, *FLAGS)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """The user's own folder of built libraries; raises PluginError where it is, or could be, somebody else's."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenon" / "sim"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PluginError(
            f"no folder for the library of the simulated device: {error}", remedy="set XDG_CACHE_HOME to a folder"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PluginError(
            f"{folder} is a link, or others than you may write to it, and what lies in it is run as code",
            remedy=f"remove it, or set XDG_CACHE_HOME to a folder of your own (chmod go-w {folder})",
        )
    return folder


def build(file: Path) -> None:
    """Compile every unit, link them, and put the library at `file` in one step."""
    begin = time.monotonic()
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise PluginError(
            f"the simulated device is built by a C++ compiler, and none of {', '.join(COMPILERS)} is on the path",
            remedy="install g++ (Debian and Ubuntu: apt install g++), or choose another --platform",
        )
    LOG.info("building the simulated device for torch %s with %s, once", torch.__version__, compiler)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        objects = [Path(scratch) / f"{unit}.o" for unit in UNITS]
        includes = ("-I", _torch() / "include", "-I", _torch() / "include" / "torch" / "csrc" / "api" / "include")
        _run(
            [compiler, *FLAGS, *includes, "-c", SOURCES / f"{unit}.cpp", "-o", made]
            for unit, made in zip(UNITS, objects, strict=True)
        )
        linked = Path(scratch) / file.name
        _run([[compiler, "-shared", "-o", linked, *objects, "-L", _torch() / "lib", "-lc10", "-ltorch_cpu", "-ldl"]])
        linked.replace(file)
    LOG.info("built %s in %.0f s", file, time.monotonic() - begin)


def _torch() -> Path:
    return Path(torch.__file__).parent


def _run(commands: Iterator[list[str | Path]] | list[list[str | Path]]) -> None:
    """All commands at once; raises PluginError with the first failure's words."""
    started = [
        (command, subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        for command in commands
    ]
    failed = ""
    for command, process in started:
        try:
            said, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        if process.returncode and not failed:
            failed = f"{' '.join(map(str, command))}\n{said.decode(errors='replace')[-4000:]}"
    if failed:
        raise PluginError(
            f"the simulated device does not build against torch {torch.__version__}:\n{failed}",
            remedy="install a g++ that knows C++20 (11 or newer), or a torch that this tenon-sim was made for",
        )


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One process builds, the others wait for it."""
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(library_file())
