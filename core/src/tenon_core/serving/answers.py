"""What all answers share: ids, heads, JSON responses, and the labels a request brings."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from importlib_metadata import PackageNotFoundError, version
from starlette.requests import Request
from starlette.responses import Response

from tenon_core.observability.log import escaped

from .protocol import SamplingFields

REQUEST_ID_HEADER = "x-request-id"
MAX_LABEL = 128
_NOT_LABEL = re.compile(r"[^A-Za-z0-9._:-]")


def new_label() -> str:
    """A server-made id."""
    return secrets.token_hex(12)


def label_of(request: Request) -> str:
    """The id of this HTTP request: ours, or the client's own where it is a plain label. Never a key of anything."""
    label: str = request.scope.get("tenon.request_id") or new_label()
    return label


def label_from_header(value: str | None) -> str:
    """A client's id if it is a short plain label, else one of ours."""
    if value and len(value) <= MAX_LABEL and not _NOT_LABEL.search(value):
        return value
    return new_label()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What begins every answer of a call."""

    id: str
    object: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self) -> dict[str, Any]:
        """As JSON."""
        return {"id": self.id, "object": self.object, "created": self.created, "model": self.model}

    def headers(self, request: Request) -> dict[str, str]:
        """Headers of a stream."""
        return {REQUEST_ID_HEADER: label_of(request)}


def installed() -> str:
    """The version of tenon-core."""
    try:
        return version("tenon-core")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "unknown"


def json_response(value: Mapping[str, Any] | msgspec.Struct, status: int = 200) -> Response:
    """An object as a response."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def labelled(fields: SamplingFields, request: Request) -> dict[str, Any]:
    """Options of `Generation.start` that a request brings."""
    return {
        "request_id": escaped(fields.request_id or label_of(request), cap=MAX_LABEL),
        "cache_salt": fields.cache_salt or "",
        "priority": fields.priority or 0,
    }
