"""Interpreters that see only some of our packages, as if the others had been uninstalled.

A folder of links to everything in site-packages but our own distributions, plus the chosen ones' sources and metadata;
the interpreter runs without its site-packages (-S), so it sees that folder and nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from architecture.sources import PACKAGES, ROOT

PROJECTS = {
    "tenon_platforms": ROOT / "platforms",
    "tenon_core": ROOT / "core",
    "tenon_plugin_sdk": ROOT / "plugin_sdk",
    "tenon_cpu": ROOT / "plugins" / "cpu",
    "tenon_cuda": ROOT / "plugins" / "cuda",
    "tenon_sim": ROOT / "plugins" / "sim",
    "tenon_triton": ROOT / "plugins" / "triton",
}
OURS = ("tenon_", "_editable_impl_tenon_", "__editable__.tenon_", "__editable___tenon_")


@dataclass(frozen=True)
class CleanPath:
    """`folders`: what the interpreter's path is made of."""

    folders: tuple[Path, ...]

    def run(self, code: str, *arguments: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run `code` there."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TENON_"))}
        env["PYTHONPATH"] = os.pathsep.join(map(str, self.folders))
        env["OMP_NUM_THREADS"] = "2"
        return subprocess.run(
            [sys.executable, "-S", "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=timeout
        )


def clean_path(folder: Path, packages: Iterable[str], *, extra: Iterable[Path] = ()) -> CleanPath:
    """An interpreter path with our `packages` only; `extra`: folders put before everything."""
    packages = list(packages)
    links = folder / "site"
    if not links.exists():
        links.mkdir(parents=True)
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(OURS) and entry.suffix != ".pth" and entry.name != "__pycache__":
                (links / entry.name).symlink_to(entry)
    metadata = folder / ("metadata-" + "-".join(packages))
    for package in packages:
        write_metadata(metadata, PROJECTS[package] / "pyproject.toml")
    return CleanPath((*extra, metadata, *(PACKAGES[package] for package in packages), links))


def write_metadata(folder: Path, pyproject: Path) -> None:
    """A dist-info folder as an installer would write it, from a pyproject.toml: name, version, entry points."""
    from architecture.rules.outside_imports import tomllib

    project = tomllib.loads(pyproject.read_text())["project"]
    module = project["name"].replace("-", "_")
    target = folder / f"{module}-{project['version']}.dist-info"
    target.mkdir(parents=True, exist_ok=True)
    (target / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (target / "INSTALLER").write_text("tests\n")
    groups = {**project.get("entry-points", {}), "console_scripts": project.get("scripts", {})}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), "")
    ]
    (target / "entry_points.txt").write_text("\n".join(lines))
    (target / "RECORD").write_text("")
