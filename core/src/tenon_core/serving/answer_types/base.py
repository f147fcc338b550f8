"""What all answers share: they are closed. And errors, in both shapes."""

from __future__ import annotations

from typing import Literal

import msgspec


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


class MessageErrorDetail(Answer):
    """What is wrong."""

    type: str
    message: str


class MessageErrorAnswer(Answer):
    """An error of Messages."""

    type: Literal["error"]
    error: MessageErrorDetail
