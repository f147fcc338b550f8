"""Prints the longest source files: a file is at home in a screen or three; at 500 lines ask what the second idea is."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASK_AT = 500


def lengths(root: Path) -> list[tuple[int, str]]:
    """(lines, path) of every source file of a package, longest first."""
    found = [
        (len(path.read_text(encoding="utf-8").splitlines()), path.relative_to(root).as_posix())
        for source in [*root.glob("*/src"), *root.glob("plugins/*/src")]
        for path in source.rglob("*.py")
    ]
    return sorted(found, reverse=True)


def main() -> None:
    """Print a short table."""
    found = lengths(ROOT)
    counts = [count for count, _ in found]
    print(f"{len(found)} files, {sum(counts)} lines, median {counts[len(counts) // 2]}, longest {counts[0]}")
    for count, name in found[: int(sys.argv[1]) if len(sys.argv) > 1 else 8]:
        print(f"{count:6d}  {name}{'  <- what is the second idea?' if count >= ASK_AT else ''}")


if __name__ == "__main__":
    main()
