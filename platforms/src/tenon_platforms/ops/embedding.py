"""Token embedding spec. Reference: `embedding_reference.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .linear import WeightScheme
from .spec import Spec, feature


@dataclass(frozen=True, kw_only=True)
class EmbeddingSpec(Spec):
    """Row lookup in a [vocab, hidden] table of `scheme`. scale: multiplies the result (Gemma: sqrt(hidden))."""

    op: ClassVar[str] = "embedding"
    vocab_size: int
    hidden: int
    scheme: WeightScheme
    dtype: DType
    scale: float = feature(1.0, "embedding.scale")
