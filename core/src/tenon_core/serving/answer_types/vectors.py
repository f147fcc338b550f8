"""Answers of models that embed, label and score."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from .base import Answer
from .texts import Usage

Vector = list[float] | str  # numbers, or float32 little-endian as base64


class Embedding(Answer):
    """One input's vector."""

    object: Literal["embedding"]
    index: int
    embedding: Vector


class Pooled(Answer):
    """What the head gives of one input, or of each of its tokens."""

    object: Literal["pooling"]
    index: int
    data: list[float | list[float]] | str


class Label(Answer):
    """One input's best label, and the scores of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Score(Answer):
    """One pair's."""

    object: Literal["score"]
    index: int
    score: float


class ListAnswer(Answer):
    """What all of them share."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: Usage


class EmbeddingAnswer(ListAnswer):
    """Vectors, in the inputs' order."""

    data: list[Embedding]


class PoolingAnswer(ListAnswer):
    """What the head gives, in the inputs' order."""

    data: list[Pooled]


class ClassifyAnswer(ListAnswer):
    """Labels, in the inputs' order."""

    data: list[Label]


class ScoreAnswer(ListAnswer):
    """Scores, in the pairs' order."""

    data: list[Score]


class RankedText(Answer):
    """A document's text."""

    text: str


class Ranked(Answer):
    """index: of the document in the request."""

    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class RerankAnswer(Answer):
    """Documents, the best first."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]
