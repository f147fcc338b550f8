"""Server-sent events: the pieces of a stream, of which all but the new text is encoded once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .errors import HttpError, error_body, http_error

DONE = b"data: [DONE]\n\n"
ENCODER = msgspec.json.Encoder()
LAST_EVENT = "tenon.last_event"  # in a scope: an error as the end of the stream that answers it
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(value: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + ENCODER.encode(value) + b"\n\n"


class Pieces:
    """Events with the same head: `{"id": ..., "model": ..., "choices":[` CHOICE `]}`."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = head
        self._start = b"data: " + ENCODER.encode(head)[:-1] + b',"choices":['
        self._end = b"]}\n\n"

    def of(self, choice: bytes, further: Mapping[str, Any] | None = None) -> bytes:
        """An event with one choice, already encoded. further: what stands beside `choices`."""
        if further:
            return self._start + choice + b"]," + ENCODER.encode(further)[1:] + b"\n\n"
        return self._start + choice + self._end

    def usage(self, usage: Mapping[str, int]) -> bytes:
        """The event with the counts of tokens."""
        return event({**self._head, "choices": [], "usage": usage})


def typed_event(value: Mapping[str, Any]) -> bytes:
    """One event that is named by its type."""
    return b"event: %s\n" % str(value["type"]).encode() + event(value)


def error_event(error: HttpError) -> bytes:
    """An error in OpenAI's shape."""
    return event(error_body(error))


class Stream(StreamingResponse):
    """A response whose work ends with it, also where no piece was asked for.

    A generator that never began has no `finally`: a client that leaves while the headers wait for room to be sent would
    leave its work running.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        headers: Mapping[str, str],
        release: Callable[[], None],
        last: Callable[[HttpError], bytes],
    ) -> None:
        super().__init__(body, media_type="text/event-stream", headers=headers)
        self.release, self.last = release, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[LAST_EVENT] = self.last
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.release()


def stream_response(
    pieces: AsyncIterator[bytes],
    headers: Mapping[str, str] | None = None,
    *,
    release: Callable[[], None],
    tell: Callable[[HttpError], bytes] = error_event,
    end: bytes = DONE,
) -> Stream:
    """Pieces as a response. An error on the way becomes the last event before the end, as `tell` writes it.

    release: ends the work behind the pieces; called once the response is over, however it ended.
    """
    body = guarded(pieces, tell, end)
    return Stream(body, {**HEADERS, **(headers or {})}, release, lambda error: tell(error) + end)


async def guarded(
    pieces: AsyncIterator[bytes], tell: Callable[[HttpError], bytes] = error_event, end: bytes = DONE
) -> AsyncIterator[bytes]:
    """The pieces, then the end; the generator is closed whatever happens, which ends what it waits for."""
    async with aclosing(pieces) as source:  # type: ignore[type-var]
        try:
            async for piece in source:
                yield piece
        except Exception as error:  # noqa: BLE001 - the headers are sent: only an event can tell it
            yield tell(http_error(error))
    if end:
        yield end


def usage_of(num_prompt: int, num_output: int, num_cached: int) -> dict[str, Any]:
    """Counts of tokens as clients know them."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
