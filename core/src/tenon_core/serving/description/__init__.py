"""The description of the HTTP API: `GET /openapi.json`: made of the requests' and answers' types when asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

Routes = tuple[tuple[str, str, bool], ...]  # (method, path, whether it is public)


def openapi(routes: Routes, *, has_keys: bool) -> Callable[[Request], Awaitable[Response]]:
    """The handler of GET /openapi.json."""

    def made() -> bytes:
        from .document import document

        return document(routes, has_keys=has_keys)

    async def get_openapi(request: Request) -> Response:
        return Response(await asyncio.to_thread(made), media_type="application/json")

    return get_openapi
