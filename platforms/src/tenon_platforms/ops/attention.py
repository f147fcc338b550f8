"""Attention specs, one per kind of layer group. Backends: `tenon_platforms.attention`; reference beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .spec import Spec, feature


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(Spec):
    """Grouped-query attention over a paged KV cache (Ainslie et al. 2023, arXiv 2305.13245).

    scale multiplies q k^T. sliding_window: a token sees itself and the window - 1 before it; 0: everything before it.
    soft_cap: scores become cap * tanh(score / cap). sinks: a learned logit per head joins the softmax's sum.
    causal False: a token sees its whole sequence. Run-time properties a batch may have are declared: tree_mask.
    kv_dtype: what the cache holds keys (after rotation) and values in, see `KVLayout`; attention is of what it holds.
    """

    op: ClassVar[str] = "attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    dtype: DType
    kv_dtype: DType
    sliding_window: int = feature(0, "attention.sliding_window")
    soft_cap: float = feature(0.0, "attention.soft_cap")
    sinks: bool = feature(False, "attention.sinks")
    causal: bool = feature(True, "attention.bidirectional")
    tree_mask: bool = feature(False, "attention.tree_mask")
