"""What all answers share: they are closed. And errors, in both shapes."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A closed object."""


class ErrorDetail(Answer):
    """What is wrong. param: the field it is about. code: a word for programs, else the status."""

    message: str
    type: str
    param: str | None
    code: str | int


class ErrorAnswer(Answer):
    """An error of every route but those of Messages."""

    error: ErrorDetail


class MessageErrorDetails(Answer):
    """What a client of Anthropic's goes by, without reading the message. unsupported: fields of the request."""

    error_code: str
    unsupported: list[str]


class MessageErrorDetail(Answer):
    """What is wrong."""

    type: str
    message: str
    details: MessageErrorDetails | UnsetType = UNSET


class MessageErrorAnswer(Answer):
    """An error of Messages."""

    type: Literal["error"]
    error: MessageErrorDetail
