"""Looks into built wheels for what a green checkout can hide: `check_wheels.py DIST`.

Every file of a package's source folder must be in its wheel, data files included; the licence too; and every extra of
the core must name a distribution in its metadata.
"""

from __future__ import annotations

import sys
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "tenon_platforms": ROOT / "platforms" / "src",
    "tenon_core": ROOT / "core" / "src",
    "tenon_plugin_sdk": ROOT / "plugin_sdk" / "src",
    "tenon_cpu": ROOT / "plugins" / "cpu" / "src",
    "tenon_triton": ROOT / "plugins" / "triton" / "src",
    "tenon_cuda": ROOT / "plugins" / "cuda" / "src",
    "tenon_sim": ROOT / "plugins" / "sim" / "src",
}
EXTRAS = ("cpu", "cuda", "rocm", "xpu", "tpu", "ascend", "gaudi")


def source_files(source: Path, package: str) -> set[str]:
    """What the wheel must hold of the source folder, by path in the wheel."""
    return {
        file.relative_to(source).as_posix()
        for file in (source / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc"
    }


def missing_from(wheel: Path, package: str, source: Path) -> list[str]:
    """Files that the wheel should hold and does not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    missing = sorted(source_files(source, package) - names)
    if not any(name.endswith("/LICENSE") for name in names):
        missing.append("LICENSE")
    if f"{package}/py.typed" not in names:
        missing.append(f"{package}/py.typed")
    return missing


def extras_of(wheel: Path) -> dict[str, list[str]]:
    """Extra -> the requirements it adds, as the wheel's metadata has them."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    found: dict[str, list[str]] = {extra: [] for extra in metadata.get_all("Provides-Extra", [])}
    for requirement in metadata.get_all("Requires-Dist", []):
        text, _, marker = requirement.partition(";")
        for extra in found:
            if f"extra == '{extra}'" in marker.replace('"', "'"):
                found[extra].append(text.strip())
    return found


def main() -> int:
    """Check every package's wheel; returns the exit code."""
    dist = Path(sys.argv[1])
    problems = []
    for package, source in SOURCES.items():
        wheels = list(dist.glob(f"{package}-*.whl"))
        if len(wheels) != 1:
            problems.append(f"{package}: {len(wheels)} wheels in {dist}")
            continue
        problems += [f"{wheels[0].name} lacks {name}" for name in missing_from(wheels[0], package, source)]
        if package == "tenon_core":
            extras = extras_of(wheels[0])
            for extra in EXTRAS:
                if not any(text.startswith(f"tenon-{extra}") for text in extras.get(extra, [])):
                    problems.append(f"extra {extra!r} of tenon-core names no tenon-{extra}: {extras.get(extra)}")
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{len(SOURCES)} wheels are complete")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
