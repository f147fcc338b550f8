"""Models as data: what a family returns and the engine builds. Torch-free, hashable, printable by `tenon inspect`.

A model is an embedding, a list of layers, a final norm and a head. A layer is a mixer, a feed-forward and norms. A
platform may match on any of these specs, up to the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .ops.rope import RopeSpec
from .ops.spec import Spec, feature


@dataclass(frozen=True, kw_only=True)
class NormSpec(Spec):
    """An RMS norm of the model; its width comes from its place. weight_offset as in `RMSNormSpec`."""

    op: ClassVar[str] = "model.norm"
    eps: float
    weight_offset: float = feature(0.0, "rms_norm.weight_offset")


@dataclass(frozen=True, kw_only=True)
class AttentionMixer(Spec):
    """Grouped-query attention between a merged q, k, v projection and an output projection."""

    op: ClassVar[str] = "model.attention"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: NormSpec | None = None
    sliding_window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False


@dataclass(frozen=True, kw_only=True)
class GatedMLP(Spec):
    """down(activation(gate x) * up x)."""

    op: ClassVar[str] = "model.gated_mlp"
    intermediate: int
    activation: str


@dataclass(frozen=True, kw_only=True)
class MoE(Spec):
    """A mixture of gated MLPs."""

    op: ClassVar[str] = "model.moe"
    intermediate: int
    num_experts: int
    top_k: int
    renormalize: bool
    activation: str


@dataclass(frozen=True, kw_only=True)
class Layer(Spec):
    """Pre-norm residual layer; post norms (Gemma) act on a branch's output before it is added."""

    op: ClassVar[str] = "model.layer"
    mixer: AttentionMixer
    ffn: GatedMLP | MoE
    pre_mixer: NormSpec
    pre_ffn: NormSpec
    post_mixer: NormSpec | None = None
    post_ffn: NormSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Head(Spec):
    """What comes of the hidden states.

    kind: "language_model" (logits), "pool" (embeddings), "classify" (labels). tied: the embedding is the head's
    weight. pooling: "last", "mean" or "first". soft_cap: of logits (Gemma 2).
    """

    op: ClassVar[str] = "model.head"
    kind: str = "language_model"
    tied: bool = False
    soft_cap: float = feature(0.0, "head.soft_cap")
    pooling: str = "last"
    num_labels: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A whole model. max_positions: the longest context it was made for."""

    op: ClassVar[str] = "model"
    architecture: str
    vocab_size: int
    hidden: int
    layers: tuple[Layer, ...]
    final_norm: NormSpec
    head: Head
    max_positions: int
    embedding_scale: float = 1.0
    causal: bool = True
    position_axes: int = 1
