"""JSON from people nobody vouches for: no NaN, no infinity, no key twice, no endless number, no deep nesting.

Nor half of a surrogate pair: an escape can spell one, and then no text that holds it can be written again.
The one parser of model files and of request bodies; each says in its own words what was wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


class TooDeepError(ValueError):
    """Lists and objects nest deeper than allowed."""


class LoneSurrogateError(ValueError):
    """A text holds half of a surrogate pair. field: of the outermost object, where there is one."""

    def __init__(self, field: str | None) -> None:
        what = "a text" if field is None else f"{field!a:.80}"
        super().__init__(f"{what} holds a lone surrogate, which is no Unicode character")
        self.field = field


def loads_strict(text: str | bytes, *, max_depth: int, max_digits: int) -> Any:
    """The value. Raises `TooDeepError`, `LoneSurrogateError`, or another ValueError that says what is wrong."""

    def whole(digits: str) -> int:
        if len(digits) > max_digits:
            raise ValueError(f"a whole number of more than {max_digits} digits")
        return int(digits)

    plain = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
    parse_int = whole if re.search(rf"[0-9]{{{max_digits}}}", plain) else None  # a call for each costs most of the time
    try:
        value = json.loads(
            plain, parse_constant=_no_constant, parse_int=parse_int, parse_float=_finite, object_pairs_hook=_unique
        )
    except RecursionError:
        raise TooDeepError(f"nested deeper than {max_depth} levels") from None
    if _is_deeper(value, max_depth):
        raise TooDeepError(f"nested deeper than {max_depth} levels")
    if _SURROGATE.search(plain) is not None:
        for field, held in value.items() if isinstance(value, dict) else ((None, value),):
            if not all(map(_is_whole, _texts([field, held]))):
                raise LoneSurrogateError(field)
    return value


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, keys too."""
    level = [value]
    while level:
        yield from (one for one in level if isinstance(one, str))
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in ((*one.keys(), *one.values()) if isinstance(one, dict) else one)
        ]


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_deeper(value: Any, limit: int) -> bool:
    """Level by level, without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.80} is too large a number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.80} comes twice")
            seen.add(key)
    return result
