"""Errors as clients see them: OpenAI's shape for every status, Anthropic's under its path.

Never a path of ours, a traceback or a Python object.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tenon_core.client.link import EngineLostError
from tenon_core.client.worker_process import WorkerLostError
from tenon_platforms.errors import CapacityError, RequestError, TenonError

LOG = logging.getLogger(__name__)
MAX_MESSAGE = 1000
MAX_PARAM = 256  # characters: it may be a field that the client made up
RETRY_AFTER_SECONDS = 1
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class LateError(TenonError):
    """A request took longer than the server lets it."""


class HttpError(Exception):
    """An answer other than success. headers: further ones of the answer; details: what Anthropic's clients look at."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers, self.details = headers or {}, details


def http_error(error: BaseException) -> HttpError:
    """Any error as an answer. What is not meant for clients is told in general terms; whoever caught it logs it."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, RequestError):
        return HttpError(400, error.message, param=error.param)
    if isinstance(error, LateError):
        return HttpError(504, error.message)
    if isinstance(error, CapacityError):
        return HttpError(429, error.message, code="overloaded", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
    if isinstance(error, EngineLostError):
        return HttpError(503, error.message, code="engine_lost", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
    if isinstance(error, WorkerLostError):
        return HttpError(503, error.message, code="worker_lost", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
    if isinstance(error, TenonError):
        return HttpError(500, "the engine failed while it worked on this request; the server's log has the cause")
    return HttpError(500, "internal error; the server's log has the cause")


def client_gone() -> HTTPException:
    """Nobody waits for the answer. Not an `HttpError`: nothing was refused."""
    return HTTPException(400, "the client went away")


def not_ready(state: str) -> HttpError:
    """The engine cannot take requests now."""
    return HttpError(
        503,
        f"the engine is {state}: try again later",
        code="not_ready",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def error_body(error: HttpError) -> dict[str, Any]:
    """The JSON object of an error."""
    kind = TYPES.get(error.status, "server_error")
    param = None if error.param is None else _writable(error.param[:MAX_PARAM])
    return {"error": {"message": _shown(error), "type": kind, "param": param, "code": error.code or error.status}}


def anthropic_body(error: HttpError) -> dict[str, Any]:
    """The JSON object of an error in Anthropic's API."""
    kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told: dict[str, Any] = {"type": kind, "message": _shown(error)}
    return {"type": "error", "error": told if error.details is None else told | {"details": error.details}}


def _shown(error: HttpError) -> str:
    message = error.message if len(error.message) <= MAX_MESSAGE else error.message[:MAX_MESSAGE] + "..."
    return _writable(message)


def _writable(text: str) -> str:
    """Without lone surrogates, which cannot be sent."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_response(error: HttpError, scope: Mapping[str, Any] | None = None) -> Response:
    """An error as a whole response to the request of this scope."""
    path = "" if scope is None else scope.get("path", "")
    is_anthropic = path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")
    body = anthropic_body(error) if is_anthropic else error_body(error)
    return Response(msgspec.json.encode(body), error.status, headers=error.headers, media_type="application/json")
