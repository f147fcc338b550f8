"""Errors about the chat request's fields, under the names of the API that the request came by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tenon_platforms.errors import RequestError


@contextmanager
def names_of(names: Mapping[str, str], parts: Mapping[str, str] | None = None) -> Iterator[None]:
    """names: the chat request's -> the API's; others are the same in both. parts: the same of what fields hold, as it
    stands in the place that a message begins with."""
    try:
        yield
    except RequestError as error:
        before = error.param or ""
        after = names.get(before, before)
        place, space, rest = error.message.partition(" ")
        if place.startswith(before):
            place = after + place[len(before) :]
        for old, new in (parts or {}).items():
            place = place.replace(old, new)
        message = place + space + rest
        if (after, message) == (before, error.message):
            raise
        raise RequestError(message, param=after or None, remedy=error.remedy) from None
