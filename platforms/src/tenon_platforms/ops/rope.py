"""Rotary positions: the spec, the frequency table's parameters, and the composite that ends in a KV write.

Reference: `rope_reference.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..dtypes import DType
from .norm import RMSNormSpec
from .spec import Spec, feature


@dataclass(frozen=True, kw_only=True)
class RopeScaling(Spec):
    """How frequencies are stretched for long contexts.

    kind "linear": divided by factor. kind "llama3": long wavelengths divided by factor, short ones kept, smooth
    between (Llama 3.1). kind "yarn": arXiv 2309.00071, with `attention_factor` on cos and sin. kind "factors": every
    frequency divided by its own of `factors` (a GGUF's rope_freqs tensor, LongRope).
    """

    op: ClassVar[str] = "rope_scaling"
    kind: str
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RopeSpec(Spec):
    """Rotary position embedding (Su et al. 2021, arXiv 2104.09864), halves rotated against each other.

    rotary_dim: leading dims of a head that rotate. interleaved: neighbouring pairs rotate instead of halves.
    axis_sections: rotary pairs taken from each position axis (multi-axis positions); empty: one axis.
    """

    op: ClassVar[str] = "rope"
    head_dim: int
    rotary_dim: int
    base: float
    max_positions: int
    scaling: RopeScaling | None = None
    interleaved: bool = feature(False, "rope.interleaved")
    axis_sections: tuple[int, ...] = feature((), "rope.axis_sections")


@dataclass(frozen=True, kw_only=True)
class QKNormRopeKVWriteSpec(Spec):
    """Composite: split q, k, v; norm q and k per head; rotate; write k and v into the KV cache; return q.

    layout_id: the KV layout written to; a fused kernel must know it. The default uses the attention backend's writer.
    """

    op: ClassVar[str] = "qk_norm_rope_kv_write"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: DType
    layout_id: str
    q_norm: RMSNormSpec | None = None
    k_norm: RMSNormSpec | None = None
    rope: RopeSpec | None = None
