"""Secrets are compared in constant time: `hmac.compare_digest` only, never `==` or `in` (attack case T03)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from architecture.sources import Source, dotted

SECRET = re.compile(r"(?:^|_)(?:secret|digest|api_key|password|passwd)s?$")
TELLING = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
METHODS = frozenset({"startswith", "endswith", "index", "find", "count"})


def violations(sources: Iterable[Source]) -> list[str]:
    """Every comparison that stops at the first difference."""
    return [
        f"{source.at(node)} compares {name}: use hmac.compare_digest"
        for source in sources
        for node in ast.walk(source.tree)
        for name in _compared(node)
    ]


def _compared(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and any(isinstance(one, TELLING) for one in node.ops):
        yield from filter(None, map(_secret, (node.left, *node.comparators)))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield from filter(None, map(_secret, (node.func.value, *node.args)))


def _secret(node: ast.AST) -> str:
    """The name of a value that is called a secret, taken through subscripts and conversions."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            if node.func.attr in ("digest", "hexdigest"):
                return node.func.attr
            node = node.func.value  # .encode(), .hex()
        else:
            break
    name = dotted(node)
    return name if SECRET.search(name.rpartition(".")[2]) else ""
