"""The HTTP/1.1 protocol of the server with limits that come before any parsing cost: headers' bytes, number and time.

Errors at this level close the connection, once the requests before the wrong one are answered. HTTP parsing itself is
llhttp's, through httptools and uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .errors import HttpError, error_body

MAX_HEADER_BYTES = 64 * 2**10  # request line and headers together
MAX_HEADERS = 128
MAX_OWED = 16  # requests of one connection, sent without waiting for the answers of those before
DEFAULT_HEADER_SECONDS = 10.0


class UnchunkedCycle(RequestResponseCycle):
    """An answer to a client of HTTP/1.0, which knows no chunks: a body without a length ends with its connection."""

    has_length = True

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self.chunked_encoding = None if self.has_length else False
        elif not self.has_length:
            self.expected_content_length = len(message.get("body", b""))  # whatever comes
        await super().send(message)


class LimitedProtocol(HttpToolsProtocol):
    """One connection. header_seconds: set on a subclass by the server's configuration."""

    header_seconds = DEFAULT_HEADER_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_headers = True
        self._num_header_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._owed: list[RequestResponseCycle] = []  # requests that were read and may not be answered yet, in order
        self._is_over = False  # nothing is read any more, what is owed is still answered
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)
        for cycle in self._unanswered():  # uvicorn tells the last one only, which may not even run yet
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._in_headers:
            if self._deadline is None:
                self._expect_headers()
            self._num_header_bytes += len(data)
            # A body may come along in the same piece: only a header that did not end is surely too long.
        super().data_received(data)
        if self._in_headers and self._num_header_bytes > MAX_HEADER_BYTES:
            self._refuse(HttpError(431, f"the headers are longer than {MAX_HEADER_BYTES} bytes"))

    def on_message_begin(self) -> None:
        if len(self._unanswered()) >= MAX_OWED:
            self._refuse(HttpError(400, f"{MAX_OWED} requests were sent without waiting for an answer"))
        if self._is_over:
            raise httptools.HttpParserError("the connection ends")  # ends the parsing of what was read already
        super().on_message_begin()
        self._in_headers = True
        self._num_header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS or len(name) + len(value) > MAX_HEADER_BYTES:
            self._refuse(HttpError(431, f"there are more than {MAX_HEADERS} headers, or too long ones"))
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._num_header_bytes = 0
        self._cancel()
        if self._is_deaf:
            return
        super().on_headers_complete()
        assert self.cycle is not None
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnchunkedCycle  # uvicorn makes it; its answer has not begun
        self._owed.append(self.cycle)
        self.flow.resume_reading()  # a client that goes away is noticed by reading alone

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_headers = True  # of the next request
        if self.cycle is not None and not self._is_deaf:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(HttpError(400, "the request is not valid HTTP"))

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self._late)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self._in_headers and not self.transport.is_closing():
            self._refuse(HttpError(408, f"the headers did not arrive within {self.header_seconds:g} s"))

    @property
    def _is_deaf(self) -> bool:
        """Whether what arrives no longer counts."""
        return self._is_over or bool(self.transport.is_closing())

    def _unanswered(self) -> list[RequestResponseCycle]:
        self._owed = [cycle for cycle in self._owed if not cycle.response_complete]
        return self._owed

    def _refuse(self, error: HttpError) -> None:
        """Answer and close; once a response has begun there is nothing left to say."""
        if self._is_deaf:
            return
        self._cancel()
        whole = self._unanswered()
        if not self._in_headers and whole and whole[-1] is self.cycle:  # this one is wrong in its body
            whole = whole[:-1]
        if whole:  # theirs would be taken for this answer
            self._is_over = True
            whole[-1].keep_alive = False
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = msgspec.json.encode(error_body(error))
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()


def protocol_class(header_seconds: float) -> type[Any]:
    """The protocol with a time for headers."""
    return type("ServedProtocol", (LimitedProtocol,), {"header_seconds": header_seconds})
