"""OpenAI's batch files: lines of requests in, lines of answers out, one at a time.

    in   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    out  {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": {...}},
          "error": null}

A line that is no request gets a record with an error in place of a response. An output that is there already is taken
up: a last line that was cut off goes, and what was answered is not asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from tenon_core.loading.strict_json import TooDeepError, loads_strict
from tenon_platforms.errors import ConfigError

from .body import MAX_DEPTH, MAX_DIGITS

MAX_ID = 512  # characters of a custom_id


class BadLineError(Exception):
    """A line that is no request. custom_id: what it says of itself, where that much could be read."""

    def __init__(self, message: str, *, code: str = "invalid_line", custom_id: str | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.custom_id = message, code, custom_id


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """One line's request."""

    line: int
    custom_id: str
    url: str
    body: bytes


def read_lines(source: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """(line number from 1, the line), without blank ones; None in place of one that is too long. Memory: one line."""
    number = 0
    while line := source.readline(max_bytes + 2):
        number += 1
        is_long = len(line.rstrip(b"\r\n")) > max_bytes
        while is_long and line and not line.endswith(b"\n"):
            line = source.readline(max_bytes)
        if is_long:
            yield number, None
        elif line.strip():
            yield number, line


def parse_line(number: int, line: bytes | None, urls: frozenset[str]) -> BatchRequest:
    """A line's request. urls: what may be asked for. Raises `BadLineError`."""
    if line is None:
        raise BadLineError(f"line {number} is too long")
    try:
        value = loads_strict(line.decode("utf-8"), max_depth=MAX_DEPTH + 1, max_digits=MAX_DIGITS)
    except (ValueError, TooDeepError) as error:  # bad UTF-8 and bad JSON are ValueErrors
        raise BadLineError(f"line {number} is not valid JSON: {error}"[:500]) from None
    if not isinstance(value, dict):
        raise BadLineError(f"line {number} is not a JSON object")
    name = value.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID:
        raise BadLineError(f"line {number}: custom_id must be a text of 1 to {MAX_ID} characters")
    unknown = set(value) - {"custom_id", "method", "url", "body"}
    if unknown:
        raise BadLineError(f"line {number}: {min(unknown)!r:.80} is not a field of a batch request", custom_id=name)
    if value.get("method", "POST") != "POST":
        raise BadLineError(f"line {number}: method is {value['method']!r:.80}: it must be POST", custom_id=name)
    url, body = value.get("url"), value.get("body")
    if not isinstance(url, str) or url not in urls:
        raise BadLineError(
            f"line {number}: url is {url!r:.80}: there are {', '.join(sorted(urls))}",
            code="invalid_url",
            custom_id=name,
        )
    if not isinstance(body, dict):
        raise BadLineError(f"line {number}: body must be a JSON object", custom_id=name)
    if body.get("stream"):
        raise BadLineError(f"line {number}: a batch has no streams: leave stream out", custom_id=name)
    if body.get("background"):
        raise BadLineError(f"line {number}: a batch waits for its answers: leave background out", custom_id=name)
    return BatchRequest(line=number, custom_id=name, url=url, body=json.dumps(body).encode())


@dataclass(slots=True, kw_only=True)
class BatchOutput:
    """The output file, appended to. num_*: records of this run; `done`: digests of what has its record already."""

    path: Path
    num_kept: int = 0
    _done: set[bytes] = field(default_factory=set)
    _file: BinaryIO | None = None

    def __enter__(self) -> BatchOutput:
        try:
            self._file = self.path.open("r+b") if self.path.exists() else self.path.open("x+b")
        except OSError as error:
            raise ConfigError(f"the output {self.path} cannot be written: {error.strerror}") from None
        self._take_up(self._file)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def _take_up(self, file: BinaryIO) -> None:
        """Read the records that are there, and cut off a last one that is not whole. Raises `ConfigError`."""
        end = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                record = msgspec.json.decode(line, type=_Record)
            except msgspec.MsgspecError:
                raise ConfigError(
                    f"{self.path} holds something else than a batch's answers", remedy="name another output file"
                ) from None
            self._done.add(_digest(record.custom_id, record.error.line if record.error is not None else None))
            self.num_kept += 1
            end += len(line)
        file.seek(end)
        file.truncate()

    def has(self, custom_id: str | None, line: int) -> bool:
        """Whether that request, or that line without a name, has its record."""
        return _digest(custom_id, line) in self._done

    def write(self, custom_id: str | None, *, line: int, response: Any = None, error: Any = None) -> None:
        """One record, handed to the system before this returns."""
        assert self._file is not None
        self._done.add(_digest(custom_id, line))
        record = {
            "id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response,
            "error": None if error is None else {**error, "line": line},
        }  # fmt: skip
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()


class _Error(msgspec.Struct):
    line: int


class _Record(msgspec.Struct):
    custom_id: str | None
    error: _Error | None = None


def _digest(custom_id: str | None, line: int | None) -> bytes:
    """Eight bytes stand for a record, so that millions of them fit."""
    name = f"line {line}" if custom_id is None else f"id {custom_id}"
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
