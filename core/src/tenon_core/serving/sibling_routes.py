"""What an API process answers its siblings, beside its metrics: of the responses that it keeps, for the key they name.

On the unix socket only, which this user alone may use; there is no key to check, as the sibling has checked it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .access import GuardedRoute, Keys
from .answers import json_response
from .app import told
from .openai import responses
from .response_shares import OWNER, History
from .services import Services

Endpoint = Callable[[Request], Awaitable[Response]]


def sibling_routes(services: Services) -> list[GuardedRoute]:
    """The routes over this process's store."""
    made: tuple[tuple[str, str, Endpoint], ...] = (
        *((method, path, maker(services)) for (method, path), maker in responses.KEPT.items()),
        ("GET", "/history/{identity}", history(services)),
        ("GET", "/items/{identity}", item(services)),
    )
    return [
        GuardedRoute(path, told(owned(endpoint), services), methods=[method], keys=Keys(()), is_public=True)
        for method, path, endpoint in made
    ]


def owned(endpoint: Endpoint) -> Endpoint:
    """The endpoint for the key that the sibling names."""

    async def answered(request: Request) -> Response:
        request.scope["tenon.owner"] = request.headers.get(OWNER, "")
        return await endpoint(request)

    return answered


def history(services: Services) -> Endpoint:
    """What a response leaves to those that follow it."""

    async def get_history(request: Request) -> Response:
        entry = responses.found(services, request)
        items = [(identity, msgspec.Raw(data)) for identity, data in entry.items]
        return json_response(History(is_complete=entry.is_complete, items=items))

    return get_history


def item(services: Services) -> Endpoint:
    """An item of any response."""

    async def get_item(request: Request) -> Response:
        identity = request.path_params["identity"]
        found = services.responses.item(responses.owner_of(request), identity)
        if found is None:
            raise responses.not_found(identity)
        return json_response(found)

    return get_item
