"""What the server says of itself and of its tokenizer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from .base import Answer

ModelObject = Literal["model"]


class Health(Answer):
    """status: ok, or what the engine does instead."""

    status: str


class Readiness(Answer):
    """The server takes requests for this model."""

    status: Literal["ready"]
    model: str


class Version(Answer):
    """Of tenon-core."""

    version: str


class Model(Answer):
    """A name under which the model is served. created: when the server started, in seconds since 1970.

    max_model_len: tokens, null before the engine has said it.
    """

    id: str
    created: int
    root: str
    max_model_len: int | None
    parent: None = None
    object: ModelObject = "model"
    owned_by: Literal["tenon"] = "tenon"


class ModelList(Answer):
    """All names."""

    data: list[Model]
    object: Literal["list"] = "list"


class Tokens(Answer):
    """Token ids of a text."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Answer):
    """The text of token ids."""

    prompt: str


class Asleep(Answer):
    """Which pools of the device's memory sleep. bytes_given_back: by this request."""

    is_sleeping: bool
    asleep: list[str]
    bytes_given_back: int | UnsetType = UNSET


class EngineAnswer(Answer):
    """What the engine does now."""

    status: str
    model: str
    version: str
    platform: str
    max_model_len: int | None
    max_num_seqs: int | None
    block_size: int | None
    parsers: dict[str, str]
    stats: dict[str, int] | None
    kernels: list[dict[str, str | int]]
    start_seconds: dict[str, float]
