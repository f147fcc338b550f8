"""The OpenAPI document: what is said of the routes, requests as pydantic describes them, answers as msgspec does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

from .. import answer_types as answers
from ..answers import installed
from ..errors import ANTHROPIC_PATH, RETRY_AFTER_SECONDS
from ..playground import ASSETS, KINDS, PAGE
from .requests import REF, request_schemas
from .routes import ALWAYS, DESCRIBED, EVENTS, JSON, Described

Route = tuple[str, str, bool]  # method, path, whether it is public
PLAIN = {"type": "string"}
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
ERRORS = {True: answers.MessageErrorAnswer, False: answers.ErrorAnswer}
FILES = {"/": PAGE, **{f"/playground/{name}": name for name in ASSETS}}
Schemas = Mapping[Any, dict[str, Any]]


def described(method: str, path: str) -> Described:
    """What is said of a route. Raises `KeyError` where nothing is."""
    if path in FILES:
        kind = KINDS[FILES[path].rpartition(".")[2]]
        return Described(summary=f"The playground's {FILES[path]}", kind=kind, fails=(404,), bare={304: None})
    return DESCRIBED[f"{method} {path}"]


@lru_cache(maxsize=2)
def document(routes: tuple[Route, ...], *, has_keys: bool) -> bytes:
    """The document as JSON."""
    found = [(method, path, is_public, described(method, path)) for method, path, is_public in routes]
    types = [
        *ERRORS.values(),
        *(
            one
            for *_, told in found
            for one in (told.answer, told.chunk, *told.bare.values())
            if one not in (None, Any)
        ),
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF.replace("model", "name"))
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for method, path, is_public, told in found:
        operation = _operation(method, path, told, by_type, has_key=has_keys and not is_public)
        paths.setdefault(path.replace(":path", ""), {})[method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Tenon", "version": installed(), "license": {"name": "Apache-2.0"}},
            "paths": paths,
            "components": {
                "schemas": {**request_schemas(), **components},
                **({"securitySchemes": KEYS} if has_keys else {}),
            },
        }
    )


def _operation(method: str, path: str, told: Described, schemas: Schemas, *, has_key: bool) -> dict[str, Any]:
    is_of_messages = path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")
    error = {JSON: {"schema": schemas[ERRORS[is_of_messages]]}}
    statuses = {*ALWAYS, *told.fails} - (set() if has_key else {401})
    found: dict[str, Any] = {
        "summary": told.summary,
        "operationId": "_".join((method.lower(), *(part for part in path.split("/") if part))).translate(_PLAIN),
        "responses": {
            "200": {"description": "OK", "content": _content(told, schemas)},
            **{str(status): _failure(status, error) for status in sorted(statuses)},
            **{
                str(status): {
                    "description": HTTPStatus(status).phrase,
                    **({} if kind is None else {"content": {JSON: {"schema": schemas[kind]}}}),
                }
                for status, kind in told.bare.items()
            },
        },
    }
    if has_key:
        found["security"] = [{name: []} for name in KEYS]
    if told.body is not None:
        schema = {"$ref": REF.format(model=told.body.model.__name__)}
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    parameters = [
        *(
            {"name": part[1:-1].partition(":")[0], "in": "path", "required": True, "schema": PLAIN}
            for part in path.split("/")
            if part.startswith("{")
        ),
        *({"name": name, "in": "query", "schema": schema} for name, schema in told.query.items()),
    ]
    return {**found, "parameters": parameters} if parameters else found


_PLAIN = str.maketrans({"{": None, "}": None, ":": "_", ".": "_"})


def _content(told: Described, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {told.kind: {"schema": PLAIN if told.answer is None else schemas[told.answer]}}
    if told.chunk is not None:
        words = "with `stream`: server-sent events"
        if told.chunk is not Any:
            words += f", the data of each a {told.chunk.__name__}, the last one [DONE]"
            content[EVENTS] = {"schema": {**PLAIN, "description": words, "x-event-data": schemas[told.chunk]}}
        else:
            content[EVENTS] = {"schema": {**PLAIN, "description": words}}
    return content


def _failure(status: int, error: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": error}
    if status in (429, 503):
        words = f"seconds; {RETRY_AFTER_SECONDS} where the queue is full"
        found["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": words}}
    return found
