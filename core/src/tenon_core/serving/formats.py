"""`response_format` (OpenAI's) and `structured_outputs` (this field's servers') as one `StructuredOutputs`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from tenon_core.sampling.structured import MAX_CHOICES, StructuredOutputs, schema_text
from tenon_platforms.errors import RequestError

from .closed import Fields, entries

FORMAT = "response_format"


class JsonSchema(Fields):
    """A named schema. strict is always so here: what is supported is followed exactly."""

    name: str = Field("", max_length=256)
    description: str | None = Field(None, max_length=65_536)
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """OpenAI's field; "structural_tag" is vLLM's addition, in either of its forms: `structures` or `format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: Annotated[list[dict[str, Any]], entries()] | None = None
    triggers: Annotated[list[str], entries()] | None = None
    format: dict[str, Any] | None = None


class StructuredFields(Fields):
    """vLLM's field. Exactly one of the kinds."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], entries(MAX_CHOICES)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_any_whitespace: bool | None = None


def wanted(response_format: ResponseFormat | None, structured: StructuredFields | None) -> StructuredOutputs | None:
    """What the output must look like, or None. Raises `RequestError`."""
    formatted = None if response_format is None else of_response_format(response_format)
    if structured is None:
        return formatted
    if formatted is not None:
        raise RequestError(f"{FORMAT} and structured_outputs are both given: give one", param=FORMAT)
    tag = structured.structural_tag
    return StructuredOutputs(
        json=None if structured.json_ is None else schema_text(structured.json_),
        regex=structured.regex,
        choice=None if structured.choice is None else tuple(structured.choice),
        grammar=structured.grammar,
        json_object=bool(structured.json_object),
        structural_tag=json.dumps(tag) if isinstance(tag, dict) else tag,
        disable_any_whitespace=bool(structured.disable_any_whitespace),
    )


def of_response_format(given: ResponseFormat) -> StructuredOutputs | None:
    """OpenAI's field; None for plain text."""
    if given.type == "json_object":
        return StructuredOutputs(json_object=True)
    if given.type == "json_schema":
        if given.json_schema is None or given.json_schema.schema_ is None:
            raise RequestError(f"{FORMAT} has no json_schema.schema", param=FORMAT)
        return StructuredOutputs(json=schema_text(given.json_schema.schema_, param=FORMAT))
    if given.type == "structural_tag":
        tag: dict[str, Any] = {"structures": given.structures or [], "triggers": given.triggers or []}
        if given.format is not None:
            tag = {"type": given.type, "format": given.format}
        return StructuredOutputs(structural_tag=json.dumps(tag))
    return None
