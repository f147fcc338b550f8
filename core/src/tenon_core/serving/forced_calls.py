"""Calls that `tool_choice` forces: the output follows a grammar of the tools' schemas, whatever the family's habit.

required      [{"name": ..., "parameters": {...}}, ...]     one call or more
of one tool   {...}                                          its arguments
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenon_core.sampling.structured import StructuredOutputs, schema_text

from .parsers.formats.base import ToolFormat
from .parsers.formats.json_calls import JsonCalls, arguments
from .parsers.reader import Steps
from .parsers.scan import Scan

_DATA = frozenset({"const", "enum", "default", "examples"})  # keywords whose values are no schemas
LISTED = JsonCalls(bare="[")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsOnly(ToolFormat):
    """An answer that is the arguments of a call of `name`."""

    name: str

    def parse(self, scan: Scan, opener: str) -> Steps[None]:
        scan.start(self.name)
        yield from arguments(scan)
        scan.end()


def one_tool(name: str, schema: Mapping[str, Any]) -> tuple[ToolFormat, StructuredOutputs]:
    """(how to read it, the grammar) of a call of this tool."""
    return ArgumentsOnly(name=name, bare="{"), StructuredOutputs(json=schema_text(_object(schema), param="tools"))


def any_tool(schemas: Mapping[str, Mapping[str, Any]], *, is_one: bool) -> tuple[ToolFormat, StructuredOutputs]:
    """(how to read it, the grammar) of one call or more of these tools."""
    items, definitions = [], {}
    for place, (name, schema) in enumerate(schemas.items()):
        parameters = _object(schema)
        if _refers(parameters):  # to its own root, which becomes a definition
            definitions[f"tool{place}"] = _moved(parameters, f"#/$defs/tool{place}")
            parameters = {"$ref": f"#/$defs/tool{place}"}
        items.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    wanted: dict[str, Any] = {"type": "array", "items": {"anyOf": items}, "minItems": 1}
    if definitions:
        wanted["$defs"] = definitions
    if is_one:
        wanted["maxItems"] = 1
    return LISTED, StructuredOutputs(json=schema_text(wanted, param="tools"))


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool without a schema takes nothing."""
    return (
        {**schema, "type": "object"} if schema else {"type": "object", "properties": {}, "additionalProperties": False}
    )


def _refers(schema: Any) -> bool:
    """Whether a schema refers to parts of itself."""
    if isinstance(schema, list):
        return any(map(_refers, schema))
    if not isinstance(schema, Mapping):
        return False
    return _is_local(schema.get("$ref")) or any(_refers(one) for key, one in schema.items() if key not in _DATA)


def _moved(schema: Any, root: str) -> Any:
    """A schema whose root lies elsewhere: its own references lead there."""
    if isinstance(schema, list):
        return [_moved(one, root) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: one if key in _DATA else _moved(one, root) for key, one in schema.items()}
    if _is_local(found.get("$ref")):
        found["$ref"] = root + found["$ref"][1:]
    return found


def _is_local(reference: Any) -> bool:
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
