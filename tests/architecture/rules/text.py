"""What holds for every text file of the repository: ASCII only, and no package registry's host name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIXES = frozenset(
    {".py", ".toml", ".md", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".json", ".html", ".jinja", ".sh"}
)
NAMES = frozenset({"Makefile", "LICENSE", "run", ".gitignore"})
SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules"})
# Written in pieces, so that this file passes its own rule.
HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("crates", "io"),
        ("golang", "org"),
        ("anaconda", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("pypi", "nvidia", "com"),
    )
)
HOST = re.compile("|".join(re.escape(host) for host in HOSTS), re.IGNORECASE)


def text_files(root: Path) -> Iterator[Path]:
    """Files of the repository that people write; hidden folders but `.ci` are tools' own."""
    for path in sorted(root.iterdir()):
        if path.name in SKIPPED or (path.name.startswith(".") and path.name not in {".ci", ".gitignore"}):
            continue
        if path.is_symlink():
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from text_files(path)
        elif path.suffix in SUFFIXES or path.name in NAMES:
            yield path


def violations(paths: Iterable[Path], root: Path) -> list[str]:
    """Lines that are not ASCII or name a registry's host."""
    found = []
    for path in paths:
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            place = f"{path.relative_to(root)}:{number}"
            if not line.isascii():
                found.append(f"{place} is not ASCII: {line[:80]!r}")
            host = HOST.search(line.decode("ascii", "replace"))
            if host:
                found.append(f"{place} names a package registry: {host.group()}")
    return found
