"""What a pooling request gives back, under the names this field's users know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOutput:
    """data: float32 [width], or [tokens, width] where each token has its own."""

    data: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """The vector of one text."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Its length."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationOutput:
    """A score for each label."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """How many labels there are."""
        return len(self.probs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOutput:
    """How well two texts belong together."""

    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledRequestOutput(Generic[T]):
    """One prompt with its result."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


PoolingRequestOutput = PooledRequestOutput[PoolingOutput]
EmbeddingRequestOutput = PooledRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PooledRequestOutput[ClassificationOutput]
ScoringRequestOutput = PooledRequestOutput[ScoringOutput]
