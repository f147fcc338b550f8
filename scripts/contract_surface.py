"""The public surface of the contract as text: one line for every public class, field, method and function.

Read from the sources, without importing them, so that annotations appear as written. Private modules, names that
begin with an underscore, and the built-in platforms are not part of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PRIVATE = frozenset({"builtin"})  # platforms like any other, not surface


def surface(package: Path) -> list[str]:
    """Sorted lines for a package folder."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if "__pycache__" in parts or any(part in PRIVATE or _is_private(part) for part in parts):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        found += [f"{module}: {line}" for line in _module(ast.parse(path.read_text(encoding="utf-8")))]
    return sorted(found)


def _module(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not _is_private(node.name):
            yield from _class(node)
        elif isinstance(node, ast.FunctionDef) and not _is_private(node.name):
            yield f"def {node.name}{_signature(node)}"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from _constant(node)


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    marks = "".join(f"@{ast.unparse(mark)} " for mark in node.decorator_list)
    yield f"{marks}class {node.name}({bases})"
    is_enum = any(ast.unparse(base) in {"Enum", "IntEnum", "Flag"} for base in node.bases)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not _is_private(line.target.id):
            default = f" = {ast.unparse(line.value)}" if line.value is not None else ""
            yield f"{node.name}.{line.target.id}: {ast.unparse(line.annotation)}{default}"
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name = line.targets[0].id
            if not _is_private(name):
                yield f"{node.name}.{name} = {ast.unparse(line.value)}" if is_enum else f"{node.name}.{name}"
        elif isinstance(line, ast.FunctionDef) and (line.name == "__init__" or not _is_private(line.name)):
            kind = "".join(f"@{ast.unparse(mark)} " for mark in line.decorator_list)
            yield f"{node.name}.{kind}{line.name}{_signature(line)}"


def _constant(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    if isinstance(target, ast.Name) and target.id.isupper() and not _is_private(target.id):
        value = ast.unparse(node.value) if isinstance(node.value, ast.Constant) else "..."
        yield f"{target.id} = {value}"


def _signature(node: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"({ast.unparse(node.args)}){returns}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and name != "__init__"


def gate(old: list[str], new: list[str], old_version: str, new_version: str, released: list[str]) -> str | None:
    """Why the surface may not change so, or None. Versions are MAJOR.MINOR; `released` are frozen."""
    if old == new or old_version not in released:
        return None
    before, after = (tuple(int(part) for part in version.split(".")) for version in (old_version, new_version))
    gone = sorted(set(old) - set(new))
    if after <= before:
        return f"the surface changed and the contract's version is still {new_version}: raise it in version.py"
    if gone and before[0] >= 1 and after[0] == before[0]:
        return f"{len(gone)} lines are gone or changed ({gone[0]}): that takes a MAJOR, not {new_version}"
    return None
