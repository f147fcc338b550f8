"""The longest that one request may take (`--request-timeout`): then its work ends and its blocks are free again.

An answer that has not begun becomes 504; a stream ends with an event that says so. Work that can tell its own end is
asked to (`ON_LATE`), and given a moment for it. A Response in the background outlives its request, and keeps the time
by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import LateError, error_response, http_error
from .sse import LAST_EVENT

ON_LATE = "tenon.on_late"  # in a scope: what ends its work with the error that it is called with
LAST_WORDS_SECONDS = 5.0


def late(seconds: float) -> LateError:
    """What a request ends with."""
    return LateError(f"the request took longer than {seconds:g} s, which is this server's limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Around the application. seconds: from a request's headers to its answer's last byte."""

    app: ASGIApp
    seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        task = asyncio.ensure_future(self.app(scope, receive, watched_send))
        try:
            await asyncio.wait({task}, timeout=self.seconds)
            if not task.done() and ON_LATE in scope:
                scope[ON_LATE](late(self.seconds))
                await asyncio.wait({task}, timeout=LAST_WORDS_SECONDS)
            if task.done():
                task.result()
                return
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        error = http_error(late(self.seconds))
        if not has_begun:
            await error_response(error, scope)(scope, receive, send)
            return
        last = scope[LAST_EVENT](error) if LAST_EVENT in scope else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})
