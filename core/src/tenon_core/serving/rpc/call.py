"""One call of the application in this process, its answer piece by piece; closing it is what a disconnect is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

WAITING_PIECES = 16  # a reader that falls behind makes the writer wait


@dataclass(slots=True, kw_only=True)
class Call:
    """A request on its way. To be used in `async with`: leaving it ends what still runs."""

    app: ASGIApp
    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes = b""
    client: tuple[str, int] = ("grpc", 0)
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    _pieces: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(WAITING_PIECES))
    _gone: asyncio.Event = field(default_factory=asyncio.Event)
    _started: asyncio.Event = field(default_factory=asyncio.Event)
    _was_sent: bool = False
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Call:
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "2", "scheme": "http",
            "method": self.method, "path": self.path, "raw_path": self.path.encode(), "query_string": b"",
            "root_path": "", "headers": list(self.headers), "client": self.client, "server": ("localhost", 0),
        }  # fmt: skip
        self._task = asyncio.ensure_future(self._run(scope))
        return self  # not waiting for anything: what is cancelled here would not be left again

    async def begin(self) -> int:
        """The status, once the answer begins; 0 where it ended without one."""
        await self._started.wait()
        return self.status

    async def _run(self, scope: dict[str, Any]) -> None:
        try:
            await self.app(scope, self._receive, self._send)
        finally:
            self._started.set()
            if not self._gone.is_set():
                await self._pieces.put(None)

    async def _receive(self) -> Message:
        if not self._was_sent:
            self._was_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.answer_headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]
            }
            self._started.set()
        elif message.get("body"):
            await self._pieces.put(message["body"])

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def whole(self) -> bytes:
        """The body."""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[bytes]:
        """The data of the server-sent events that the body is."""
        rest = b""
        async for piece in self.pieces():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                yield event.removeprefix(b"data: ")

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
