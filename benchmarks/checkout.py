"""Lets a benchmark run from a bare checkout: sources on the path, and entry points as an installer would write them.

Where Tenon is installed nothing is changed. Call `use_checkout` before the first import of ours.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = ("platforms", "core", "plugin_sdk", "plugins/cpu", "plugins/triton", "plugins/cuda", "plugins/sim")


def use_checkout(*, tests: bool = False) -> None:
    """tests: the shared test modules (`driver`, `equality`, ...) can be imported too."""
    if tests:
        sys.path.append(str(ROOT / "tests"))
    try:
        distribution("tenon-core")
        installed = True
    except PackageNotFoundError:
        installed = False
    metadata = None if installed else Path(tempfile.mkdtemp(prefix="tenon-metadata-"))
    for project in map(ROOT.joinpath, PROJECTS):
        source = project / "src"
        if source.is_dir() and str(source) not in sys.path:
            sys.path.append(str(source))
        if metadata is not None and source.is_dir():
            _write_metadata(metadata, project / "pyproject.toml")
    if metadata is not None:
        sys.path.append(str(metadata))


def _write_metadata(folder: Path, pyproject: Path) -> None:
    sys.path.append(str(ROOT / "tests"))
    try:
        from architecture.clean_path import write_metadata
    finally:
        sys.path.pop()
    write_metadata(folder, pyproject)
