"""What the first process and its API processes say to each other, a JSON line each, over the pipes between them.

standard input, down    ApiOrder, then EngineAt and EngineLost as the engine comes and goes; its end is the end
standard output, up     ApiReady once requests are answered; ApiFailed before it ends because of an error
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_LINE = 2**20


class ApiOrder(msgspec.Struct, frozen=True, kw_only=True, tag="order"):
    """How to serve. path: the model's, found already. siblings: the sockets on which its metrics are asked for."""

    client: int
    engine: dict[str, Any]
    server: dict[str, Any]
    path: str
    names: tuple[str, ...]
    port: int
    socket: str
    siblings: tuple[str, ...]
    log_level: str
    log_format: str


class EngineAt(msgspec.Struct, frozen=True, kw_only=True, tag="engine_at"):
    """Where the engine is, or will be. secret: hexadecimal."""

    address: str
    secret: str


class EngineLost(msgspec.Struct, frozen=True, kw_only=True, tag="engine_lost"):
    """The engine is gone."""

    message: str


class ApiReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Requests are answered."""


class ApiFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """kind: the error's class."""

    kind: str
    message: str
    remedy: str | None = None


Down = EngineAt | EngineLost
Up = ApiReady | ApiFailed


def line(message: msgspec.Struct) -> bytes:
    """A message as a line."""
    return msgspec.json.encode(message) + b"\n"
