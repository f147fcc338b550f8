"""Logging: one line an event on standard error, control characters escaped, length capped. Standard library only.

Text from outside (model names, request ids, error messages) cannot forge a line or drive a terminal. A traceback, which
only bugs and `--debug` bring, follows its line indented, escaped line by line. As JSON an event is one object a line,
with the caller's `extra={"fields": {...}}` as fields of its own.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
MAX_CHARACTERS = 4096
OURS = ("tenon_", "tenon.")  # packages of ours and of plugins
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def escaped(text: str, *, cap: int = MAX_CHARACTERS) -> str:
    """`text` as one harmless line: control and direction characters as escapes, at most `cap` characters and a note."""
    left_out = len(text) - cap
    if left_out > 0:
        text = text[:cap]
    text = _CONTROL.sub(_escape, text)
    return f"{text}... ({left_out} more characters)" if left_out > 0 else text


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


class LineFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 INFO tenon_core.engine.start: message`, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d} {record.levelname} {record.name}"
        line = f"{head}: {escaped(record.getMessage())}"
        if record.exc_info and record.exc_info[0] is not None:
            text = self.formatException(record.exc_info)
            line += "".join(f"\n    | {escaped(part)}" for part in text.split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """`{"time": "2026-01-31T12:00:00.123Z", "level": "INFO", "logger": ..., "message": ...}`, one a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": escaped(record.getMessage()),
        }
        if record.exc_info and record.exc_info[0] is not None:
            event["traceback"] = self.formatException(record.exc_info)[-MAX_CHARACTERS:]
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            event.update((name, _plain(value)) for name, value in fields.items() if name not in event)
        return json.dumps(event)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float)) or value is None else escaped(str(value))


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": LineFormatter, "json": JsonFormatter}


def current_format() -> str:
    """The format that `setup_logging` was last called with; "text" before."""
    kinds = {type(one.formatter) for one in logging.getLogger().handlers}
    return next((name for name, kind in FORMATTERS.items() if kind in kinds), "text")


def setup_logging(level: str = "info", *, stream: TextIO | None = None, format: str = "text") -> None:
    """Send our packages' log lines of `level` and above, and everyone else's warnings, to standard error.

    May be called again: the last call holds. Raises `ValueError` for an unknown level or format.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    if format not in FORMATS:
        raise ValueError(f"log format {format!r} is none of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMATTERS[format]())
    root = logging.getLogger()
    for other in [held for held in root.handlers if isinstance(held.formatter, tuple(FORMATTERS.values()))]:
        root.removeHandler(other)
    root.addHandler(handler)
    handler.addFilter(_is_worth_a_line)
    root.setLevel(getattr(logging, level.upper()))
    logging.captureWarnings(True)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Ours at the chosen level; of other libraries only warnings."""
    return record.levelno >= logging.WARNING or record.name.startswith(OURS)
