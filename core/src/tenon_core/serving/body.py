"""Request bodies: read under a byte cap and a deadline, parsed as JSON under a depth cap, no NaN, no double keys."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from tenon_core.loading.strict_json import LoneSurrogateError, TooDeepError, loads_strict

from .errors import HttpError, client_gone

MAX_DEPTH = 32
MAX_DIGITS = 64
MAX_OPENED = 2**20  # lists and objects, of which each takes many times the memory of its two letters
IN_THREAD_BYTES = 64 * 2**10


async def read_object(request: Request, *, max_bytes: int, seconds: float) -> dict[str, Any]:
    """The JSON object of a request's body. Raises `HttpError` with 400, 408, 413 or 415."""
    check_headers(request, max_bytes)
    try:
        body = await asyncio.wait_for(_read(request, max_bytes), seconds)
    except asyncio.TimeoutError:
        raise HttpError(408, f"the body did not arrive within {seconds:g} s", headers={"Connection": "close"}) from None
    if len(body) < IN_THREAD_BYTES:
        return parse_object(body)
    return await asyncio.to_thread(parse_object, body)


def check_headers(request: Request, max_bytes: int) -> None:
    """Refuse what need not be read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "the body must be JSON: send `Content-Type: application/json`")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    framing = request.headers.get("transfer-encoding", "chunked").strip().lower()
    if encoding not in ("identity", "") or framing != "chunked":
        raise HttpError(415, "compressed bodies are not taken")
    length = request.headers.get("content-length")
    if length is not None and length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
        raise too_large(max_bytes)


def too_large(max_bytes: int) -> HttpError:
    """413."""
    return HttpError(413, f"the body is larger than {max_bytes} bytes", headers={"Connection": "close"})


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > max_bytes:
                raise too_large(max_bytes)
    except ClientDisconnect:
        raise client_gone() from None
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises `HttpError` (400)."""
    if body.count(b"[") + body.count(b"{") > MAX_OPENED:
        raise HttpError(400, f"the JSON has more than {MAX_OPENED} opening brackets")
    try:
        value = loads_strict(body.decode("utf-8"), max_depth=MAX_DEPTH, max_digits=MAX_DIGITS)
    except TooDeepError as error:
        raise HttpError(400, f"the JSON is {error}") from None
    except UnicodeDecodeError:
        raise HttpError(400, "the body is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise HttpError(400, f"the body is not valid JSON: {error.msg} at character {error.pos}") from None
    except LoneSurrogateError as error:
        raise HttpError(400, str(error), param=error.field) from None
    except ValueError as error:
        raise HttpError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise HttpError(400, "the body must be a JSON object")
    return value
