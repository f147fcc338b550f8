"""Which of several API processes keeps a response, and how the others ask it: over its unix socket, for the same key.

The process's place is part of the ids that it makes, so whoever is asked knows where a response is. One that was kept
by a process that died is gone, as if it had been forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .answers import new_label
from .errors import HttpError
from .response_store import Item

PREFIX = "resp_"
OWNER = "x-tenon-owner"
SECONDS = 30.0
_OF_A_PLACE = re.compile(r"resp_([0-9a-f]{2})[0-9a-f]{48}")


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a stored response leaves to those that follow it."""

    is_complete: bool
    items: list[tuple[str, msgspec.Raw]]

    @property
    def kept(self) -> tuple[Item, ...]:
        """As the store keeps items."""
        return tuple((identity, bytes(data)) for identity, data in self.items)


def socket_path(folder: Path, place: int) -> Path:
    """Where the API process of this place answers the others."""
    return folder / f"api-{place}"


def place_of(path: Path) -> int:
    """The place of the process that answers there."""
    return int(path.name.rpartition("-")[2])


@dataclass(slots=True, kw_only=True)
class ResponseShares:
    """place: this process's, None where it is the only one. sockets: the others', by place."""

    place: int | None = None
    sockets: Mapping[int, Path] = field(default_factory=dict)

    def new_id(self) -> str:
        """The id of a response that is kept here."""
        mark = "" if self.place is None else f"{self.place:02x}"
        return f"{PREFIX}{mark}{new_label()}{new_label()}"

    def elsewhere(self, identity: str) -> Path | None:
        """The socket of the process that keeps a response; None where only this one may."""
        match = _OF_A_PLACE.fullmatch(identity)
        return None if match is None else self.sockets.get(int(match[1], 16))

    async def forwarded(self, socket: Path, request: Request, owner: str) -> Response:
        """The answer of the process that keeps the response."""
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = await _ask(socket, request.method, target, owner)
        kind = answer.headers.get("content-type", "application/json")
        return Response(answer.content, answer.status_code, headers={"content-type": kind})

    async def history(self, socket: Path, identity: str, owner: str) -> History | None:
        """What a response elsewhere leaves, None where it is not there for this key."""
        answer = await _ask(socket, "GET", f"/history/{identity}", owner)
        return msgspec.json.decode(answer.content, type=History) if answer.status_code == 200 else None

    async def item(self, identity: str, owner: str) -> dict[str, Any] | None:
        """An item of any response that another process keeps for this key."""
        for socket in self.sockets.values():
            answer = await _ask(socket, "GET", f"/items/{quote(identity, safe='')}", owner)
            if answer.status_code == 200:
                found: dict[str, Any] = msgspec.json.decode(answer.content)
                return found
        return None


async def _ask(socket: Path, method: str, target: str, owner: str) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    try:
        async with httpx.AsyncClient(transport=transport, timeout=SECONDS) as client:
            return await client.request(method, f"http://localhost{target}", headers={OWNER: owner})
    except httpx.HTTPError:
        raise HttpError(
            503,
            "the process that keeps this response does not answer: try again, or send the conversation itself",
            code="not_ready",
            headers={"Retry-After": "1"},
        ) from None
