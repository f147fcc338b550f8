"""Errors about the chat request's fields, under the names of the API that the request came by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tenon_platforms.errors import RequestError


@contextmanager
def names_of(names: Mapping[str, str]) -> Iterator[None]:
    """names: the chat request's -> the API's; others are the same in both."""
    try:
        yield
    except RequestError as error:
        before = error.param or ""
        if before not in names:
            raise
        message = error.message
        if message.startswith(before):
            message = names[before] + message[len(before) :]
        raise RequestError(message, param=names[before], remedy=error.remedy) from None
