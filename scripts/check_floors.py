"""Fails where an installed distribution lies below its security floor (requirements/floors.txt), or is refused."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

FLOORS = Path(__file__).resolve().parent.parent / "requirements" / "floors.txt"


def read_floors(text: str) -> tuple[list[Requirement], list[str]]:
    """(requirements with a floor, refused names) of a floors file."""
    floors, refused = [], []
    for line in text.splitlines():
        if line.startswith("# refused:"):
            refused += line.removeprefix("# refused:").split()
        elif line.strip() and not line.startswith("#"):
            floors.append(Requirement(line))
    return floors, refused


def violations(floors: list[Requirement], refused: list[str], installed: dict[str, str]) -> list[str]:
    """What is wrong with `installed` (distribution name in lower case -> version), one line each."""
    found = [
        f"{floor.name} {installed[floor.name]} is installed: {floor} is needed"
        for floor in floors
        if floor.name in installed and not floor.specifier.contains(installed[floor.name], prereleases=True)
    ]
    present = [name for name in refused if name in installed]
    return found + [f"{name} {installed[name]} is installed: no safe release is known" for name in present]


def main() -> int:
    """Check this interpreter's environment; returns the exit code."""
    floors, refused = read_floors(FLOORS.read_text())
    installed = {one.name.lower().replace("_", "-"): one.version for one in metadata.distributions() if one.name}
    found = violations(floors, refused, installed)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"{sum(floor.name in installed for floor in floors)} floors kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
