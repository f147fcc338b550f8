"""JSON from files nobody vouches for: bounded in size and depth, and an object or an error that names the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tenon_platforms.errors import ConfigError

MAX_BYTES = 256 * 2**20
MAX_DEPTH = 64
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


def read_json_object(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in `path`; raises `ConfigError` for anything else."""
    size = path.stat().st_size
    if size > max_bytes:
        raise ConfigError(f"{path} has {size} bytes, more than the {max_bytes} allowed for such a file")
    return parse_json_object(path.read_bytes(), str(path))


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; `where` names it in errors."""
    if _depth(data) > MAX_DEPTH:
        raise ConfigError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds a {type(value).__name__} where an object is expected")
    return value


def _depth(data: bytes) -> int:
    """The deepest nesting, brackets in strings not counted; linear in the text."""
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", data)):
        depth += 1 if bracket.group() in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest
