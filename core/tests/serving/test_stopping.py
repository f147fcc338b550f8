"""A request that the server's end cancels gets an answer, where one has not begun; others' cancellations pass.

A client that ends its own request is none that was refused, nor is one that took too long.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from tenon_core.serving.access import HostRule
from tenon_core.serving.app import Surround, told
from tenon_core.serving.body import read_object
from tenon_core.serving.deadline import late
from tenon_core.serving.errors import HttpError
from tenon_core.serving.services import unless_gone

pytestmark = pytest.mark.unit
SCOPE = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"host", b"localhost")], "client": ("c", 1)}


def sent_by(*, begins: bool, is_ending: bool) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def cancelled(scope: Any, receive: Any, send: Any) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    around = Surround(app=cancelled, hosts=HostRule.of("127.0.0.1", ()), logs=True, is_ending=lambda: is_ending)
    asyncio.run(around(dict(SCOPE), receive, send))
    return sent


def test_an_unanswered_request_is_told_that_the_server_stops() -> None:
    start, body = sent_by(begins=False, is_ending=True)
    assert start["status"] == 503 and b"being stopped" in body["body"]


def test_an_answer_under_way_just_ends() -> None:
    (start,) = sent_by(begins=True, is_ending=True)
    assert start["status"] == 200


def test_a_cancellation_of_another_cause_passes() -> None:
    with pytest.raises(asyncio.CancelledError):
        sent_by(begins=False, is_ending=False)


@pytest.mark.parametrize(
    ("case", "num_refused"), [("while it waits", 0), ("in its body", 0), ("it is refused", 1), ("it is late", 0)]
)
def test_only_what_is_turned_away_counts_as_refused(case: str, num_refused: int) -> None:
    refused: list[int] = []
    services: Any = SimpleNamespace(metrics=SimpleNamespace(refused=lambda: refused.append(1)))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def endpoint(request: Request) -> Any:
        if case == "it is refused":
            raise HttpError(400, "no")
        if case == "it is late":
            raise late(1)
        if case == "in its body":
            return await read_object(request, max_bytes=10, seconds=1)
        return await unless_gone(request, asyncio.Event().wait())

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    answer = asyncio.run(told(endpoint, services)(Request({**SCOPE, "headers": headers}, receive)))  # type: ignore[arg-type]
    assert answer.status_code == (504 if case == "it is late" else 400) and len(refused) == num_refused
