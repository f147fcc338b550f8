"""Pooling spec: many tokens' hidden states as one vector. Reference: `pooling_reference.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .spec import Spec


@dataclass(frozen=True, kw_only=True)
class MeanPoolSpec(Spec):
    """The mean of each row's hidden states (Reimers and Gurevych 2019, arXiv 1908.10084). dtype: of the states."""

    op: ClassVar[str] = "mean_pool"
    hidden: int
    dtype: DType
