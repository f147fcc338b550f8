"""The longest that one request may take (`--request-timeout`): then its work ends and its blocks are free again.

An answer that has not begun becomes 504; a stream ends with an event that says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ANTHROPIC_PATH, HttpError, anthropic_body, error_body, error_response
from .sse import DONE, event


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Around the application. seconds: from a request's headers to its answer's last byte."""

    app: ASGIApp
    seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind: bytes | None = None  # of the answer, once it has begun

        async def watched_send(message: Message) -> None:
            nonlocal kind
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
            await send(message)

        try:
            await asyncio.wait_for(self.app(scope, receive, watched_send), self.seconds)
        except asyncio.TimeoutError:
            late = HttpError(504, f"the request took longer than {self.seconds:g} s, which is this server's limit")
            if kind is None:
                await error_response(late, scope)(scope, receive, send)
                return
            last = last_event(late, scope["path"]) if kind.startswith(b"text/event-stream") else b""
            await send({"type": "http.response.body", "body": last, "more_body": False})


def last_event(error: HttpError, path: str) -> bytes:
    """The end of a stream that breaks off, in its protocol's shape."""
    if path.startswith(ANTHROPIC_PATH):
        return b"event: error\n" + event(anthropic_body(error))
    return event(error_body(error)) + DONE
