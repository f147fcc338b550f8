"""The native library as a file: it is refused where it was not built from the sources that lie beside it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tenon_cpu import native
from tenon_platforms.errors import PluginError

pytestmark = pytest.mark.unit
LIBRARY = Path(native.__file__).with_name(native.NAME)


class Old:
    """A library from before the check."""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of this checkout's native sources, free to be changed."""
    if not native.SOURCES.is_dir():
        pytest.skip("not a checkout")
    return Path(shutil.copytree(native.SOURCES, tmp_path / "native"))


def test_cmake_and_python_agree(sources: Path, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    header = tmp_path / "hash.h"
    arguments = ["cmake", f"-DROOT={sources}", f"-DOUTPUT={header}", "-P", str(sources / "sources_hash.cmake")]
    subprocess.run(arguments, check=True)
    assert header.read_text() == f'#define TENON_SOURCES_HASH "{native.sources_hash(sources)}"\n'


@pytest.mark.skipif(native.library() is None, reason="built without the native library")
def test_a_library_of_other_sources_is_refused(sources: Path) -> None:
    loaded = ctypes.CDLL(str(LIBRARY))
    native.refuse_stale(loaded, LIBRARY, sources)
    changed = sources / "src" / "isa.cpp"
    changed.write_text(changed.read_text() + "\n")
    with pytest.raises(PluginError, match="not built from the sources") as caught:
        native.refuse_stale(loaded, LIBRARY, sources)
    assert "make native" in str(caught.value)


def test_an_older_library_is_refused(sources: Path) -> None:
    with pytest.raises(PluginError, match="older than this check"):
        native.refuse_stale(cast(ctypes.CDLL, Old()), LIBRARY, sources)


def test_a_wheel_has_no_sources_and_skips_the_check(tmp_path: Path) -> None:
    native.refuse_stale(cast(ctypes.CDLL, Old()), LIBRARY, tmp_path / "native")


def test_every_source_counts(sources: Path) -> None:
    seen = {native.sources_hash(sources)}
    for name in ("CMakeLists.txt", "include/tenon_cpu.h", "src/linear/blocks.inl", "src/threads.cpp"):
        (sources / name).write_bytes((sources / name).read_bytes() + b"\n")
        seen.add(native.sources_hash(sources))
    assert len(seen) == 5


REFUSED = """
import resource
from pathlib import Path
from tenon_cpu import native
from tenon_platforms.errors import DeviceError

held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**29, resource.RLIM_INFINITY))  # of some 60 threads' stacks
try:
    native.set_threads(1000)
except DeviceError as error:
    print(error)
print(native.num_threads())
native.set_threads(3)
print(native.num_threads())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(native.library() is None, reason="no native library")
def test_threads_that_the_system_refuses_are_an_error() -> None:
    found = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.splitlines() == ["starting 1000 threads: the system refused to start threads", "1", "3"]
