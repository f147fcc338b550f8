"""Schemas of requests, out of the models that they are read by, with the ceilings that are checked behind them.

A field that is taken only where its value asks for nothing is described by these values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic.json_schema import models_json_schema

from tenon_core.sampling.params import CEILINGS, LENGTH_CEILINGS, MAX_STOP_CHARACTERS

from ..anthropic import message_fields
from ..closed import Fields
from ..openai import response_fields
from ..pooling_fields import EmbeddingFields, InputFields, PoolFields, RerankFields, ScoreFields
from ..protocol import (
    NOT_YET,
    REFUSED,
    BeamFields,
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    TokenizeFields,
)

REF = "#/components/schemas/{model}"
# Names of other APIs -> the sampling parameter's.
SAME = {
    "top_logprobs": "logprobs",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
}
OF_A_BODY = {"array": "maxItems", "object": "maxProperties"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A request's. further: fields of the chat request that the API takes beside its own."""

    model: type[Fields]
    not_yet: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: NOT_YET)
    further: tuple[str, ...] = ()


COMPLETION = Body(model=CompletionFields)
CHAT = Body(model=ChatFields)
RESPONSE = Body(
    model=response_fields.ResponseFields, not_yet=response_fields.NOT_YET, further=response_fields.EXTENSIONS
)
INPUT_TOKENS = Body(model=response_fields.InputTokenFields, not_yet=response_fields.NOT_YET)
MESSAGE = Body(model=message_fields.MessageFields, not_yet=message_fields.NOT_YET, further=message_fields.EXTENSIONS)
COUNT = Body(model=message_fields.CountFields, not_yet=message_fields.NOT_YET)
EMBEDDING = Body(model=EmbeddingFields)
POOLING = Body(model=PoolFields)
CLASSIFY = Body(model=InputFields)
SCORE = Body(model=ScoreFields)
RERANK = Body(model=RerankFields)
TOKENIZE = Body(model=TokenizeFields)
DETOKENIZE = Body(model=DetokenizeFields)
BODIES = (
    COMPLETION, CHAT, RESPONSE, INPUT_TOKENS, MESSAGE, COUNT, EMBEDDING, POOLING, CLASSIFY, SCORE, RERANK, TOKENIZE,
    DETOKENIZE,
)  # fmt: skip


def request_schemas() -> dict[str, Any]:
    """All models' schemas by name."""
    _, found = models_json_schema([(body.model, "validation") for body in BODIES], ref_template=REF)
    schemas: dict[str, Any] = found["$defs"]
    for schema in schemas.values():
        _drop_titles(schema)
    chat = schemas[ChatFields.__name__]["properties"]
    for body in BODIES:
        properties = schemas[body.model.__name__]["properties"]
        for name in body.further:
            properties.setdefault(name, chat[name])
        for name, values in body.not_yet.items():
            properties.setdefault(name, {"enum": list(values)})
        for name in REFUSED:
            properties.setdefault(name, {"type": "null"})
    for body in BODIES:
        if issubclass(body.model, BeamFields) or body.further:
            for name, schema in schemas[body.model.__name__]["properties"].items():
                _bound(name, schema)
    return schemas


def _drop_titles(schema: Any) -> None:
    """They repeat the names."""
    for one in _schemas(schema):
        if isinstance(one.get("title"), str):
            del one["title"]


def _schemas(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for inner in schema.get("properties", {}).values():
        yield from _schemas(inner)
    for name in ("anyOf", "oneOf", "prefixItems"):
        for inner in schema.get(name, ()):
            yield from _schemas(inner)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _schemas(schema[name])


def _bound(name: str, schema: dict[str, Any]) -> None:
    """Write a parameter's ceiling into its schema: of numbers their range, of lists and maps their length."""
    name = SAME.get(name, name)
    for one in _alternatives(schema):
        kind = one.get("type")
        if name in CEILINGS and kind in ("integer", "number"):
            least, one["maximum"] = CEILINGS[name]
            one.setdefault("minimum", least)
        if name in LENGTH_CEILINGS and kind in OF_A_BODY:
            one[OF_A_BODY[kind]] = LENGTH_CEILINGS[name]
        if name == "stop":
            for text in (one, one.get("items", {})):
                if text.get("type") == "string":
                    text |= {"minLength": 1, "maxLength": MAX_STOP_CHARACTERS}


def _alternatives(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    yield from schema.get("anyOf", ())
