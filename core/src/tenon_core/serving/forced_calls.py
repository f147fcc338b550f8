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
    items = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": _object(schema)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, schema in schemas.items()
    ]
    wanted: dict[str, Any] = {"type": "array", "items": {"anyOf": items}, "minItems": 1}
    if is_one:
        wanted["maxItems"] = 1
    return LISTED, StructuredOutputs(json=schema_text(wanted, param="tools"))


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool without a schema takes nothing."""
    return (
        {**schema, "type": "object"} if schema else {"type": "object", "properties": {}, "additionalProperties": False}
    )
