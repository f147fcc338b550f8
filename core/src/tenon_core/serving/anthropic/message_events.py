"""A message's stream: its events in the order that clients' libraries expect, and a ping where it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from ..blocks import Block, Change, Kind, Stage
from ..errors import HttpError, anthropic_body
from ..sse import typed_event
from .message_run import MessageRun, signature

PING = typed_event({"type": "ping"})


async def events(run: MessageRun, interval: int) -> AsyncIterator[bytes]:
    """All events."""
    source = run.changes(interval)
    try:
        yield typed_event({"type": "message_start", "message": run.message()})
        yield PING
        async for changes in source:
            for change in changes:
                for value in told(change):
                    yield typed_event({"type": value.pop("type"), "index": change.block.index, **value})
        end = {"stop_reason": run.reason, "stop_sequence": run.stop_sequence}
        yield typed_event({"type": "message_delta", "delta": end, "usage": run.usage()})
        yield typed_event({"type": "message_stop"})
    finally:
        await source.aclose()  # type: ignore[attr-defined]


def told(change: Change) -> Iterator[dict[str, Any]]:
    """The events of one change."""
    block = change.block
    if change.stage is Stage.BEGUN:
        yield {"type": "content_block_start", "content_block": empty(block)}
    elif change.stage is Stage.GREW:
        yield {"type": "content_block_delta", "delta": delta(block.kind, change.text)}
    else:
        if block.kind is Kind.THOUGHT:
            signed = {"type": "signature_delta", "signature": signature(block.text)}
            yield {"type": "content_block_delta", "delta": signed}
        yield {"type": "content_block_stop"}


def empty(block: Block) -> dict[str, Any]:
    """A block before anything is in it."""
    if block.kind is Kind.TEXT:
        return {"type": "text", "text": "", "citations": None}
    if block.kind is Kind.THOUGHT:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def delta(kind: Kind, text: str) -> dict[str, Any]:
    """What a block grew by."""
    if kind is Kind.TEXT:
        return {"type": "text_delta", "text": text}
    if kind is Kind.THOUGHT:
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "input_json_delta", "partial_json": text}


def error_event(error: HttpError) -> bytes:
    """An error on the way."""
    return typed_event(anthropic_body(error))


async def with_pings(source: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """The source's pieces, and a ping after every so many seconds of silence."""
    piece: asyncio.Future[bytes] | None = None
    try:
        while True:
            piece = asyncio.ensure_future(_next(source))
            while not (await asyncio.wait({piece}, timeout=seconds))[0]:
                yield PING
            found = piece.result()
            if not found:
                return
            yield found
    finally:
        if piece is not None and not piece.done():
            piece.cancel()
            with suppress(asyncio.CancelledError):
                await piece
        await source.aclose()  # type: ignore[attr-defined]


async def _next(source: AsyncIterator[bytes]) -> bytes:
    """The next piece, nothing at the end."""
    return await anext(source, b"")
