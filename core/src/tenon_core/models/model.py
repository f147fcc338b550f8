"""A built model: specs turned into kernels with prepared weights. No `nn.Module`, no device, no weight names.

`forward` runs one step's tokens through the layers; `logits` is the head. Everything a layer needs was chosen and
bound when the model was built, so a call is a short list of kernel calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tenon_platforms.attention import AttentionBackend
from tenon_platforms.batch import GQAInputs
from tenon_platforms.kernel import Kernel
from tenon_platforms.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share one block table and one attention plan: same kind of cache, same lifetime of blocks.

    layers: indices of the model's layers, in order; the i-th uses cache i of the pool. window: 0 or the tokens kept.
    """

    index: int
    backend: AttentionBackend
    layers: tuple[int, ...]
    window: int


@dataclass(slots=True, kw_only=True)
class StepContext:
    """What the layers of one step share. slots, plans: one a group; caches: one a layer."""

    positions: Tensor  # [axes, tokens]
    slots: tuple[Tensor, ...]
    plans: list[Any]
    caches: list[Any]


@dataclass(slots=True, kw_only=True)
class Bound:
    """A kernel with its prepared weights."""

    kernel: Kernel
    weights: Any

    def __call__(self, *inputs: Any) -> Any:
        return self.kernel.run(*inputs, self.weights)


@dataclass(slots=True, kw_only=True)
class AttentionBlock:
    """The attention mixer of one layer."""

    layer: int
    group: int
    backend: AttentionBackend
    qkv: Bound
    out: Bound
    rope_write: Kernel
    cos_sin: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    sinks: Tensor | None

    def __call__(self, x: Tensor, context: StepContext) -> Tensor:
        cache = context.caches[self.layer]
        query = self.rope_write.run(
            self.qkv(x),
            context.positions,
            self.cos_sin,
            self.q_norm,
            self.k_norm,
            cache,
            context.slots[self.group],
        )
        mixed = self.backend.run(
            GQAInputs(query=query, cache=cache, sinks=self.sinks), context.plans[self.group]
        )  # [tokens, heads, head_dim]
        result: Tensor = self.out(mixed.flatten(1))
        return result


@dataclass(slots=True, kw_only=True)
class FirstNorm:
    """The first layer's `pre_mixer`: there is no branch to add yet, and the embedding becomes the residual."""

    norm: Bound

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.norm(x), x


@dataclass(slots=True, kw_only=True)
class BuiltLayer:
    """One residual layer. `pre_*` add the branch before them to the residual, then normalize the sum."""

    mixer: AttentionBlock
    ffn: Bound
    pre_mixer: Bound | FirstNorm
    pre_ffn: Bound
    post_mixer: Bound | None
    post_ffn: Bound | None

    def __call__(self, x: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, Tensor]:
        x, residual = self.pre_mixer(x, residual)
        x = self.mixer(x, context)
        if self.post_mixer is not None:
            x = self.post_mixer(x)
        x, residual = self.pre_ffn(x, residual)
        x = self.ffn(x)
        if self.post_ffn is not None:
            x = self.post_ffn(x)
        return x, residual


@dataclass(slots=True, kw_only=True)
class Model:
    """A model ready to run. `weight_bytes`: of prepared weights. caches: one a layer, set once the pool exists."""

    spec: ModelSpec
    groups: tuple[LayerGroup, ...]
    embedding: Bound
    layers: list[BuiltLayer]
    final_norm: Bound
    head: Bound
    weight_bytes: int = 0
    caches: list[Any] = field(default_factory=list)

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """Hidden states [tokens, hidden] after the final norm; token_ids: int32 [tokens]."""
        x, residual = self.embedding(token_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, context)
        hidden: Tensor = self.final_norm(x, residual)[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] of hidden states [rows, hidden]."""
        scores: Tensor = self.head(hidden)
        if cap := self.spec.head.soft_cap:
            scores = (scores / cap).tanh() * cap
        return scores
