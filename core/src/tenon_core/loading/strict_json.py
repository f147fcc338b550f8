"""JSON from people nobody vouches for: no NaN, no infinity, no key twice, no endless number, no deep nesting.

The one parser of model files and of request bodies; each says in its own words what was wrong.
"""

from __future__ import annotations

import json
import math
from typing import Any


class TooDeepError(ValueError):
    """Lists and objects nest deeper than allowed."""


def loads_strict(text: str | bytes, *, max_depth: int, max_digits: int) -> Any:
    """The value. Raises `TooDeepError`, or ValueError (`json.JSONDecodeError` among them) that says what is wrong."""

    def whole(digits: str) -> int:
        if len(digits) > max_digits:
            raise ValueError(f"a whole number of more than {max_digits} digits")
        return int(digits)

    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_int=whole, parse_float=_finite, object_pairs_hook=_unique
        )
    except RecursionError:
        raise TooDeepError(f"nested deeper than {max_depth} levels") from None
    if _is_deeper(value, max_depth):
        raise TooDeepError(f"nested deeper than {max_depth} levels")
    return value


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
