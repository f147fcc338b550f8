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
    """A norm of the model; its width comes from its place. kind: "rms", or "layer" with mean and bias (BERT).

    weight_offset as in `RMSNormSpec`.
    """

    op: ClassVar[str] = "model.norm"
    eps: float
    weight_offset: float = feature(0.0, "rms_norm.weight_offset")
    kind: str = feature("rms", "norm.kind")


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
class MLP(Spec):
    """down(activation(up x)), with biases where `bias`."""

    op: ClassVar[str] = "model.mlp"
    intermediate: int
    activation: str
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class LearnedPositions(Spec):
    """A table of position embeddings, added to the tokens': row `position + offset` (RoBERTa's begins late)."""

    op: ClassVar[str] = "model.learned_positions"
    count: int
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Layer(Spec):
    """Pre-norm residual layer; post norms (Gemma) act on a branch's output before it is added."""

    op: ClassVar[str] = "model.layer"
    mixer: AttentionMixer
    ffn: GatedMLP | MoE | MLP
    pre_mixer: NormSpec
    pre_ffn: NormSpec
    post_mixer: NormSpec | None = None
    post_ffn: NormSpec | None = None


@dataclass(frozen=True, kw_only=True)
class HeadLayer(Spec):
    """A linear layer of a pooling head. activation: "", "tanh", or one of `ops.mlp.ACTIVATIONS`."""

    op: ClassVar[str] = "model.head_layer"
    out_features: int
    bias: bool = True
    activation: str = ""


@dataclass(frozen=True, kw_only=True)
class Head(Spec):
    """What comes of the hidden states.

    kind: "language_model" (logits), "pool" (embeddings), "classify" (labels). tied: the embedding is the head's
    weight. soft_cap: of logits (Gemma 2). Of the other two kinds: pooling, which token's state is taken, "last", "mean"
    or "first", or "all": each token's own; layers: what it goes through then, one after the other, the last of them
    `num_labels` wide where the kind is "classify".
    """

    op: ClassVar[str] = "model.head"
    kind: str = "language_model"
    tied: bool = False
    soft_cap: float = feature(0.0, "head.soft_cap")
    pooling: str = "last"
    num_labels: int = 0
    layers: tuple[HeadLayer, ...] = feature((), "head.layers")


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A whole model. max_positions: the longest context it was made for.

    post_norm: norms act after the addition and their result is the residual (Vaswani et al. 2017): the first layer's
    pre_mixer norms the embedding, a layer's pre_ffn what its mixer made, the next pre_mixer (or final_norm) what its
    ffn made. token_types: size of the table of segment embeddings; with more than one, the last axis of positions holds
    each token's segment.
    """

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
    post_norm: bool = feature(False, "model.post_norm")
    learned_positions: LearnedPositions | None = feature(None, "model.learned_positions")  # noqa: RUF009 - a field
    token_types: int = feature(0, "model.token_types")

    @property
    def needs_whole_prompts(self) -> bool:
        """Whether a prompt must be computed in one step: tokens see later ones, or pooling wants all at once."""
        return not self.causal or (self.head.kind != "language_model" and self.head.pooling in ("mean", "first"))
