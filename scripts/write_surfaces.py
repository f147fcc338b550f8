"""Writes the frozen surfaces anew from the code: tests/surfaces/*.txt. Run by `make surfaces`.

`--check` writes nothing and fails where a file differs. Each surface is a function that returns sorted lines.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from contract_surface import gate, surface

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "surfaces"
SOURCES = ("platforms/src", "core/src", "plugin_sdk/src", "plugins/cpu/src", "plugins/cuda/src", "plugins/sim/src")
VERSION_LINE = "version "


def hooks() -> list[str]:
    """Hooks and their arguments."""
    from tenon_platforms.hookspecs import PROJECT, HookSpecs

    return sorted(
        f"{name}({', '.join(list(inspect.signature(hook).parameters)[1:])})"
        for name, hook in vars(HookSpecs).items()
        if name.startswith(f"{PROJECT}_")
    )


def cli_flags() -> list[str]:
    """Every command's flags, in the command tree's order made alphabetical."""
    from tenon_core.cli.flags import surface_lines
    from tenon_core.cli.main import cli

    return sorted(surface_lines(cli, "tenon"))


def environment() -> list[str]:
    """Environment variables of ours that the code names."""
    found = set()
    for text in _strings():
        if text.startswith("TENON_") and text.replace("_", "").isalnum() and text.isupper():
            found.add(text)
    return sorted(found)


def entry_points() -> list[str]:
    """Entry-point groups."""
    from tenon_core.hookspecs import GROUPS
    from tenon_platforms.manifest_files import GROUP

    return sorted({*GROUPS, GROUP})


def http_routes() -> list[str]:
    """Methods and paths of the application."""
    from tenon_core.serving.app import routes

    return sorted(routes())


def metrics() -> list[str]:
    """Metric families: name, type, labels beside the model's name."""
    from tenon_core.engine.messages import EngineStats
    from tenon_core.observability.metrics import EngineMetrics

    made = EngineMetrics("model")
    made.take_snapshot(EngineStats(*(0 for _ in EngineStats.__struct_fields__[:-1])))
    made.set_block_size(16)
    found = set()
    for family in made.registry.collect():
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        found.add(f"{family.name} {family.type} {{{','.join(labels)}}}")
    return sorted(found)


def contract() -> list[str]:
    """The contract's public names, headed by its version."""
    from tenon_platforms.version import contract_version_text

    return [VERSION_LINE + contract_version_text(), *surface(ROOT / "platforms" / "src" / "tenon_platforms")]


def _strings() -> Iterator[str]:
    for source in SOURCES:
        for path in (ROOT / source).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


SURFACES: dict[str, Callable[[], list[str]]] = {
    "hooks": hooks,
    "cli_flags": cli_flags,
    "environment": environment,
    "entry_points": entry_points,
    "http_routes": http_routes,
    "metrics": metrics,
    "contract": contract,
}


def stored(name: str) -> list[str]:
    """The committed lines of a surface; empty where there are none yet."""
    path = FOLDER / f"{name}.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


def difference(name: str, now: list[str]) -> list[str]:
    """A unified diff from the committed surface to the present one."""
    return list(difflib.unified_diff(stored(name), now, f"{name}.txt", "the code", n=0, lineterm=""))


def refusal(now: list[str]) -> str | None:
    """Why the contract's surface may not be what it is now, or None."""
    before = stored("contract")
    if not before:
        return None
    released = stored("contract_releases")
    old_version, new_version = (lines[0].removeprefix(VERSION_LINE) for lines in (before, now))
    return gate(before[1:], now[1:], old_version, new_version, released)


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the frozen surfaces anew.")
    parser.add_argument("names", nargs="*", help="surfaces to write; all unless named")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a file differs")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.names or SURFACES:
        now = SURFACES[name]()
        changed = difference(name, now)
        why_not = refusal(now) if name == "contract" else None
        if why_not:
            print(f"contract: {why_not}", file=sys.stderr)
            failed = True
        elif changed and arguments.check:
            print("\n".join(changed), file=sys.stderr)
            failed = True
        elif changed:
            (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in now), encoding="ascii")
            print(f"{name}: written, {len(now)} lines")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
