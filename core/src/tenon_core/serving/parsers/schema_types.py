"""Which JSON types an argument may have, by its tool's schema, and an argument's text as JSON of such a type.

For formats that write arguments as bare text. Sees `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf` and local `$ref`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .values import JSON, PYTHON, as_json, escaped

MAX_STEPS = 64  # schemas looked at for one argument
_WORDS = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: Mapping[str, Any] | None, key: str) -> frozenset[str]:
    """JSON types of argument `key`; empty where the schema does not say."""
    properties = (schema or {}).get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return frozenset(_types(found, schema or {}))


def _types(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    todo, steps = [schema], 0
    while todo and steps < MAX_STEPS:
        one, steps = todo.pop(), steps + 1
        if not isinstance(one, Mapping):
            continue
        kind = one.get("type")
        yield from (kind,) if isinstance(kind, str) else (text for text in kind or () if isinstance(text, str))
        values = one.get("enum")
        if kind is None:
            yield from map(_type_of, values if isinstance(values, list) else [one["const"]] if "const" in one else [])
        for name in ("anyOf", "oneOf", "allOf"):
            branches = one.get(name)
            todo += branches[:MAX_STEPS] if isinstance(branches, list) else []
        reference = one.get("$ref")
        if isinstance(reference, str):
            todo.append(_referred(reference, root))


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds: dict[type, str] = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def json_value(text: str, types: frozenset[str]) -> str:
    """The JSON that a bare text stands for; a JSON string of it where it can be nothing else."""
    bare = text.strip()
    found = _WORDS.get(bare) or as_json(bare, JSON) or as_json(bare, PYTHON)
    if found is None or not _suits(found, types):
        return f'"{escaped(text)}"'
    return found


def _suits(found: str, types: frozenset[str]) -> bool:
    """Whether a value may be one where a string may be too: then only if its own type is named."""
    if "string" not in types:
        return True
    kind = _type_of(json.loads(found))
    return kind != "string" and (kind in types or (kind == "integer" and "number" in types))
