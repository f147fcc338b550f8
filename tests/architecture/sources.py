"""Our source files, parsed once: what the rules of this folder read. A planted tree for a self-test looks alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "tenon_platforms": ROOT / "platforms" / "src",
    "tenon_core": ROOT / "core" / "src",
    "tenon_plugin_sdk": ROOT / "plugin_sdk" / "src",
    "tenon_cpu": ROOT / "plugins" / "cpu" / "src",
    "tenon_cuda": ROOT / "plugins" / "cuda" / "src",
    "tenon_sim": ROOT / "plugins" / "sim" / "src",
    "tenon_triton": ROOT / "plugins" / "triton" / "src",
}
SKIPPED = {"__pycache__", "build", "dist"}


@dataclass(frozen=True)
class Source:
    """One file. name: its path below the root of its tree, for messages; module: dotted, empty where it is none."""

    path: Path
    name: str
    module: str

    @cached_property
    def text(self) -> str:
        """Its content."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text, self.name)

    def at(self, node: ast.AST) -> str:
        """`file:line` of a node."""
        return f"{self.name}:{getattr(node, 'lineno', 0)}"


def package_sources(source: Path, package: str) -> list[Source]:
    """Every file of a package, data files included."""
    found = []
    for path in sorted((source / package).rglob("*")):
        if path.is_file() and not SKIPPED & set(path.parts) and path.suffix != ".pyc":
            place = path.relative_to(source)
            parts = place.with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) if path.suffix == ".py" else ""
            found.append(Source(path, place.as_posix(), module))
    return found


@cache
def ours(package: str) -> tuple[Source, ...]:
    """The files of one of our packages, as they are in this checkout."""
    return tuple(package_sources(PACKAGES[package], package))


def python_of(sources: tuple[Source, ...] | list[Source]) -> list[Source]:
    """Those that are Python."""
    return [source for source in sources if source.path.suffix == ".py"]


def planted(folder: Path, files: Mapping[str, str]) -> list[Source]:
    """Write `files` (path below `folder` -> text) and read them back as the sources of their packages."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    packages = sorted({Path(name).parts[0] for name in files})
    return [source for package in packages for source in package_sources(folder, package)]


def imports(source: Source) -> Iterator[tuple[str, ast.AST]]:
    """Every module a file imports, wherever the statement stands, and those imported by a literal name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _absolute(source, node), node
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__", "find_spec"}:
            names = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
            yield from ((name, node) for name in names if isinstance(name, str))


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = source.module.split(".")
    if source.path.name != "__init__.py":
        package = package[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""
