"""The application: the table of routes, each guarded unless declared public, and what surrounds every request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenon_core.observability.log import escaped
from tenon_platforms.errors import CapacityError, RequestError, TenonError

from . import chat, completions, embeddings, info, playground, scoring, sleep
from .access import GuardedNotFound, GuardedRoute, HostRule, Keys, admin_keys
from .answers import REQUEST_ID_HEADER, label_from_header
from .anthropic import messages
from .deadline import Deadline
from .description import openapi
from .errors import HttpError, LateError, error_response, http_error
from .field_names import names_of
from .openai import responses
from .services import Services
from .tracing import CURRENT, RequestSpan, Traces

LOG = logging.getLogger(__name__)
Endpoint = Callable[[Request], Awaitable[Response]]
Maker = Callable[[Services], Endpoint]
MAX_LOGGED = 200
NAMES = {"beam_width": "n"}  # the engine's -> the APIs'
REQUEST_ID_HEADERS = (REQUEST_ID_HEADER, "request-id")  # as OpenAI's clients know it, and Anthropic's
PROBES = frozenset({"/health", "/ready", "/metrics", "/engine"})


def described(services: Services) -> Endpoint:
    """The maker of GET /openapi.json."""
    return openapi(
        (
            *((method, path, is_public) for method, path, _, is_public in TABLE),
            *((method, path, False) for method, path, _ in ADMIN if services.has_sleep),
        ),
        has_keys=bool(services.config.api_key),
    )


# (method, path, maker, whether it is public). The one list of routes; a test holds it against tests/surfaces.
TABLE: tuple[tuple[str, str, Maker, bool], ...] = (
    ("POST", "/v1/completions", completions.handler, False),
    ("POST", "/v1/chat/completions", chat.handler, False),
    ("POST", "/v1/messages", messages.create, False),
    ("POST", "/v1/messages/count_tokens", messages.count, False),
    ("POST", "/v1/responses", responses.create, False),
    ("POST", "/v1/responses/input_tokens", responses.count, False),
    *((method, path, responses.of_one(method, path), False) for method, path in responses.KEPT),
    ("POST", "/v1/embeddings", embeddings.embeddings, False),
    ("POST", "/pooling", embeddings.pooling, False),
    ("POST", "/classify", embeddings.classify, False),
    ("POST", "/score", scoring.score, False),
    ("POST", "/v1/score", scoring.score, False),
    ("POST", "/rerank", scoring.rerank, False),
    ("POST", "/v1/rerank", scoring.rerank, False),
    ("POST", "/v2/rerank", scoring.rerank, False),
    ("GET", "/v1/models", info.models, False),
    ("GET", "/v1/models/{name:path}", info.model, False),
    ("GET", "/health", info.health, True),
    ("GET", "/ready", info.ready, False),
    ("GET", "/metrics", info.metrics, False),
    ("GET", "/version", info.version_of, False),
    ("GET", "/openapi.json", described, False),
    ("POST", "/tokenize", info.tokenize, False),
    ("POST", "/detokenize", info.detokenize, False),
    ("GET", "/engine", playground.engine, False),
    ("GET", "/", playground.asset(playground.PAGE), True),
    *(("GET", f"/playground/{name}", playground.asset(name), True) for name in playground.ASSETS),
)
# What changes the server: there only where the operator asked for it, and for an administrator's key.
ADMIN: tuple[tuple[str, str, Maker], ...] = (
    ("POST", "/sleep", sleep.sleep),
    ("POST", "/wake_up", sleep.wake_up),
    ("GET", "/is_sleeping", sleep.is_sleeping),
)
# What clients' libraries may ask for, and would otherwise be taken for the name of something -> why it is not there.
ABSENT = {
    "/v1/responses/compact": "this server compacts no conversations: send the items themselves, as many as are needed"
}
POSTS = frozenset(path for method, path, _, _ in TABLE if method == "POST")


def routes() -> list[str]:
    """Methods and paths: the frozen surface."""
    return [f"{method} {path}" for method, path, *_ in (*TABLE, *ADMIN)]


def make_app(services: Services) -> ASGIApp:
    """The application over its services."""
    config = services.config
    keys = Keys(config.api_key)
    table = [
        GuardedRoute(path, told(maker(services), services), methods=[method], keys=keys, is_public=is_public)
        for method, path, maker, is_public in TABLE
    ]
    if services.has_sleep:
        admins = admin_keys(config)
        table += [
            GuardedRoute(path, told(maker(services), services), methods=[method], keys=admins)
            for method, path, maker in ADMIN
        ]
    absent = [Route(path, GuardedNotFound(keys=keys, message=why), methods=["POST"]) for path, why in ABSENT.items()]
    app: ASGIApp = Router(routes=[*absent, *table], redirect_slashes=False, default=GuardedNotFound(keys=keys))
    if config.request_timeout:
        app = Deadline(app=app, seconds=config.request_timeout)
    if config.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # clients' libraries send many of their own; what a page may do its key says
            expose_headers=[*REQUEST_ID_HEADERS, "retry-after"],
        )
    return Surround(
        app=app,
        hosts=HostRule.of(config.host, config.allowed_hosts),
        logs=not config.disable_access_log,
        is_ending=lambda: services.is_draining,
        traces=services.traces,
    )


def told(endpoint: Endpoint, services: Services) -> Endpoint:
    """The endpoint with every error turned into an answer, and unexpected ones logged once."""

    async def answered(request: Request) -> Response:
        try:
            with names_of(NAMES):
                return await endpoint(request)
        except (HttpError, LateError, RequestError, CapacityError) as error:
            if not isinstance(error, LateError):  # it was taken in
                services.metrics.refused()
            return error_response(http_error(error), request.scope)
        except TenonError as error:
            LOG.error("request %s failed: %s", request.scope.get("tenon.request_id"), error.message)
            return error_response(http_error(error), request.scope)
        except HTTPException as error:  # the framework's own
            return error_response(HttpError(error.status_code, str(error.detail)), request.scope)
        except Exception as error:
            LOG.exception("request %s failed", request.scope.get("tenon.request_id"))
            return error_response(http_error(error), request.scope)

    return answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Surround:
    """Around every request: an id, the Host rule, a span where traces are wanted, a log line."""

    app: ASGIApp
    hosts: HostRule
    logs: bool
    is_ending: Callable[[], bool] = lambda: False
    traces: Traces | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # websockets and life span are not served
            return
        headers = Headers(scope=scope)
        label = scope["tenon.request_id"] = label_from_header(headers.get(REQUEST_ID_HEADER))
        began = time.monotonic()
        status = 0
        span = self._span(scope, headers, label)

        async def labelled_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name in REQUEST_ID_HEADERS:
                    MutableHeaders(scope=message)[name] = label
            await send(message)

        try:
            self.hosts.check(headers)
        except HttpError as error:
            await error_response(error, scope)(scope, receive, labelled_send)
        else:
            await self._answered(scope, receive, labelled_send, lambda: status)
        finally:
            if span is not None:
                span.answer(status)
            if self.logs:
                self._log(scope, status, time.monotonic() - began, span)

    def _span(self, scope: Scope, headers: Headers, label: str) -> RequestSpan | None:
        """A span for what is no mere question."""
        span = None
        if self.traces is not None and scope["method"] == "POST":
            path = scope["path"] if scope["path"] in POSTS else "unknown"  # a closed set
            span = self.traces.start(method="POST", path=path, request_id=label, headers=headers)
        CURRENT.set(span)
        return span

    async def _answered(self, scope: Scope, receive: Receive, send: Send, status: Callable[[], int]) -> None:
        """The answer, or that the server ends: it cancels requests that outlast its patience, or a second Ctrl-C."""
        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:
            if not self.is_ending():
                raise
            if not status():
                gone = HttpError(503, "the server is being stopped: send the request again later")
                await error_response(gone, scope)(scope, receive, send)

    def _log(self, scope: Scope, status: int, seconds: float, span: RequestSpan | None) -> None:
        client = (scope.get("client") or ("?", 0))[0]
        is_probe = scope["path"] in PROBES  # asked for all the time
        path = escaped(scope["path"], cap=MAX_LOGGED)
        label, method, ms = scope["tenon.request_id"], scope["method"], round(seconds * 1000, 1)
        fields = {"request_id": label, "client": client, "method": method, "path": path, "status": status, "ms": ms}
        if span is not None:
            fields["trace_id"] = span.trace_id
        LOG.log(
            logging.DEBUG if is_probe else logging.INFO,
            "%s %s %s %s %d %.1f ms",
            label,
            client,
            method,
            path,
            status,
            ms,
            extra={"fields": fields},
        )


def guarded_routes(app: Any) -> Sequence[GuardedRoute]:
    """The routes of an application made here, for tests that sweep them."""
    while not isinstance(app, Router):
        app = app.app
    return [route for route in app.routes if isinstance(route, GuardedRoute)]
