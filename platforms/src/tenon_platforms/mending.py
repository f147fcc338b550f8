"""What to do about a broken plugin: who installed it installs it anew, who writes it mends its files."""

from __future__ import annotations

from pathlib import Path


def mending(distribution: str, path: str) -> str:
    """The remedy for a distribution whose manifest lies at `path`, empty where none was found.

    In a wheel's installation the package lies beside its metadata; in an editable one it lies where it is written.
    """
    folder = Path(path).parent
    if path and not any(_has_metadata(parent) for parent in folder.parents):
        return f"mend {folder}, from where {distribution} is installed"
    return f"pip install --force-reinstall {distribution}"


def _has_metadata(folder: Path) -> bool:
    return next(folder.glob("*.dist-info"), None) is not None
