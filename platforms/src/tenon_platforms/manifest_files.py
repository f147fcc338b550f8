"""Finding `platform.toml` of every installed platform: entry points and files, never an import.

Wheels: through the distribution's list of files. Editable installs: through the folders in the distribution's `.pth`
file, or where the import system would find the top-level package (`find_spec` of a top-level name runs no code of
it); from there the package's dotted name is walked as folders.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from typing import Any

from importlib_metadata import EntryPoint, distributions

from .errors import ConfigError

GROUP = "tenon.platforms"
FILE = "platform.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEntry:
    """One entry point of the group. package: dotted name of the package that holds the file."""

    name: str
    package: str
    distribution: str
    version: str
    source: Any  # the importlib_metadata distribution
    problem: str = ""


def platform_entries(path: Sequence[str] | None) -> Iterator[PlatformEntry]:
    """The group's entry points, each distribution once: the first on the path wins, as it does for imports."""
    seen: set[str] = set()
    for distribution in distributions() if path is None else distributions(path=list(path)):
        if not _mentions_group(distribution):
            continue
        name, version = _identity(distribution)
        normalized = name.lower().replace("_", "-").replace(".", "-")
        if normalized in seen:
            continue
        seen.add(normalized)
        for entry_name, package, problem in _group(distribution, name):
            yield PlatformEntry(
                name=entry_name,
                package=package,
                distribution=name,
                version=version,
                source=distribution,
                problem=problem,
            )


def _mentions_group(distribution: Any) -> bool:
    """A cheap look before parsing: most distributions have nothing to do with us."""
    try:
        return GROUP in (distribution.read_text("entry_points.txt") or "")
    except (OSError, UnicodeDecodeError):
        return False


def _identity(distribution: Any) -> tuple[str, str]:
    """Name and version; without metadata, what the folder is called."""
    try:
        return distribution.metadata["Name"] or "unknown", distribution.metadata["Version"] or "unknown"
    except (OSError, KeyError, TypeError, AttributeError):  # METADATA is missing: how that is told varies by version
        folder = Path(str(getattr(distribution, "_path", "unknown")))
        name, _, version = folder.name.rpartition(".")[0].partition("-")
        return name or "unknown", version or "unknown"


def _files(distribution: Any) -> list[Any]:
    """The distribution's own list of files; empty where it has none or it cannot be read."""
    try:
        return list(distribution.files or ())
    except (OSError, ValueError, csv.Error):
        return []


def _group(distribution: Any, owner: str) -> list[tuple[str, str, str]]:
    """(entry name, package, problem) of one distribution."""
    try:
        entries: list[EntryPoint] = [entry for entry in distribution.entry_points if entry.group == GROUP]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        return [(owner, "", f"entry_points.txt of {owner} cannot be read: {type(error).__name__}: {error}")]
    return [(entry.name, entry.value, _problem(entry, owner)) for entry in entries]


def _problem(entry: EntryPoint, owner: str) -> str:
    if all(part.isidentifier() for part in entry.value.split(".")):
        return ""
    return (
        f"entry point {entry.name!r} of {owner} is {entry.value!r}: expected the dotted name of the package that holds"
        f" {FILE}, without an object (the object is the key 'entry' of that file)"
    )


def find_manifest_file(entry: PlatformEntry, search: Sequence[str] | None) -> Path:
    """The file's path. Raises `ConfigError` that lists where it was looked for."""
    inside = PurePosixPath(*entry.package.split("."), FILE)
    tried: list[str] = []
    for candidate in _candidates(entry, inside, search):
        if candidate.is_file():
            return candidate
        tried.append(str(candidate))
    looked = ", ".join(dict.fromkeys(tried)) or f"no folder holds the package {entry.package.split('.')[0]!r}"
    raise ConfigError(
        f"{entry.distribution} {entry.version} ships no {inside} (entry point {entry.name!r} names the package"
        f" {entry.package!r}); looked in: {looked}"
    )


def _candidates(entry: PlatformEntry, inside: PurePosixPath, search: Sequence[str] | None) -> Iterator[Path]:
    files = _files(entry.source)
    for file in files:
        if PurePosixPath(file) == inside:
            yield Path(str(file.locate()))
    for file in files:
        if file.suffix == ".pth":
            for folder in _pth_folders(Path(str(file.locate()))):
                yield folder / inside
    top, *rest = entry.package.split(".")
    spec = _top_level_spec(top, search)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(location, *rest, FILE)


def _pth_folders(file: Path) -> list[Path]:
    """The folders a `.pth` file adds to the path; lines that are code are not run."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    names = [line.strip() for line in lines]
    return [file.parent / name for name in names if name and not name.startswith(("#", "import ", "import\t"))]


def _top_level_spec(top: str, search: Sequence[str] | None) -> ModuleSpec | None:
    if search is not None:
        return PathFinder.find_spec(top, list(search))
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module without __spec__ is loaded under this name
        return None
