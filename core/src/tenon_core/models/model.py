"""A built model: specs turned into kernels with prepared weights. No `nn.Module`, no device, no weight names.

`forward` runs one step's tokens through the layers; `logits` is the head. Everything a layer needs was chosen and
bound when the model was built, so a call is a short list of kernel calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend
from tenon_platforms.batch import GQAInputs, StepInputs
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
    """What the layers of one step share. slots, plans: one a group; caches: one a layer.

    wanted: int32 [n], the tokens whose hidden states are read; None: all. Behind its attention the last layer computes
    no others: a prompt's earlier tokens have left their keys and values by then, and nobody reads the rest.
    """

    positions: Tensor  # [axes, tokens]
    slots: tuple[Tensor, ...]
    plans: list[Any]
    caches: list[Any]
    wanted: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class Bound:
    """A kernel with its prepared weights."""

    kernel: Kernel
    weights: Any

    def __call__(self, *inputs: Any) -> Any:
        return self.kernel.run(*inputs, self.weights)


@dataclass(slots=True, kw_only=True)
class AttentionBlock:
    """The attention mixer of one layer, after its product of queries, keys and values."""

    layer: int
    group: int
    backend: AttentionBackend
    out: Bound
    rope_write: Kernel
    cos_sin: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    sinks: Tensor | None

    def __call__(self, qkv: Tensor, context: StepContext, wanted: Tensor | None = None) -> Tensor:
        """[tokens, hidden], of `wanted` ones or of all, of qkv [tokens, (heads + 2 * kv heads) * head_dim]."""
        cache = context.caches[self.layer]
        query = self.rope_write.run(
            qkv,
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
        mixed = mixed.flatten(1)
        result: Tensor = self.out(mixed if wanted is None else mixed.index_select(0, wanted))
        return result


@dataclass(slots=True, kw_only=True)
class AddThenNorm:
    """A norm after the addition, whose result is the residual: (y, y) of a branch and the residual before it."""

    norm: Bound

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        y: Tensor = self.norm(x if residual is None else x + residual)
        return y, y


@dataclass(slots=True, kw_only=True)
class InputEmbedding:
    """Tokens' embeddings, and what is added to them: their segment's, then their position's."""

    tokens: Bound
    token_types: Bound | None = None
    has_segments: bool = False  # positions' last axis holds each token's type, else it is 0
    positions: Bound | None = None
    offset: int = 0

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.tokens(token_ids)
        if self.token_types is not None:
            x = x + self.token_types(positions[-1] if self.has_segments else positions[0] * 0)
        if self.positions is not None:
            x = x + self.positions(positions[0] + self.offset)
        return x


@dataclass(slots=True, kw_only=True)
class PoolingHead:
    """From hidden states to vectors. mean: the kernel, where the mean is pooled. layers: with their activations."""

    mean: Kernel | None
    layers: tuple[tuple[Bound, Callable[[Tensor], Tensor] | None], ...]

    def __call__(self, hidden: Tensor, inputs: StepInputs) -> Tensor:
        """float32 [logits, width] of hidden states [tokens, hidden]."""
        x = hidden.index_select(0, inputs.logit_index)
        if self.mean is not None:
            means = self.mean.run(hidden, inputs.token_rows, inputs.query_starts, inputs.num_valid)
            of_row = means.index_select(0, inputs.token_rows.index_select(0, inputs.logit_index))
            x = torch.where((inputs.targets == 1)[:, None], x, of_row.to(x.dtype))
        for layer, activation in self.layers:
            x = layer(x)
            x = x if activation is None else activation(x)
        return x.float()


@dataclass(slots=True, kw_only=True)
class FirstNorm:
    """The first layer's `pre_mixer`: there is no branch to add yet, and the embedding becomes the residual."""

    norm: Bound

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.norm(x), x


@dataclass(slots=True, kw_only=True)
class NormThen:
    """A norm and what reads its rows, where no composite op is both: (then(norm), residual)."""

    norm: Bound | FirstNorm | AddThenNorm
    then: Bound

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        x, residual = self.norm(x, residual)
        return self.then(x), residual


@dataclass(slots=True, kw_only=True)
class BuiltLayer:
    """One residual layer. `qkv` and `ffn` add the branch before them to the residual and read the sum's norm.

    all_reduce: adds the ranks' branches up, in place, where each has computed a part of every branch.
    """

    qkv: Bound | NormThen
    mixer: AttentionBlock
    ffn: Bound | NormThen
    post_mixer: Bound | None
    post_ffn: Bound | None
    all_reduce: Callable[[Tensor], Tensor] | None = None

    def __call__(
        self, x: Tensor, residual: Tensor | None, context: StepContext, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(branch, residual), [tokens, hidden] each; of `wanted` tokens where given, in their order."""
        x, residual = self.qkv(x, residual)
        x = self.mixer(x, context, wanted)
        if self.all_reduce is not None:
            x = self.all_reduce(x)
        if wanted is not None:
            residual = residual.index_select(0, wanted)
        if self.post_mixer is not None:
            x = self.post_mixer(x)
        x, residual = self.ffn(x, residual)
        if self.all_reduce is not None:
            x = self.all_reduce(x)
        if self.post_ffn is not None:
            x = self.post_ffn(x)
        return x, residual


@dataclass(slots=True, kw_only=True)
class Model:
    """A model ready to run. `weight_bytes`: of prepared weights. caches: one a layer, set once the pool exists."""

    spec: ModelSpec
    groups: tuple[LayerGroup, ...]
    embedding: InputEmbedding
    layers: list[BuiltLayer]
    final_norm: Bound | AddThenNorm
    head: Bound | PoolingHead
    weight_bytes: int = 0
    caches: list[Any] = field(default_factory=list)

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """Hidden states [tokens, hidden] after the final norm, of the tokens that the context wants.

        token_ids: int32 [tokens].
        """
        x, residual = self.embedding(token_ids, context.positions), None
        for layer in self.layers[:-1]:
            x, residual = layer(x, residual, context)
        x, residual = self.layers[-1](x, residual, context, context.wanted)
        hidden: Tensor = self.final_norm(x, residual)[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] of hidden states [rows, hidden]."""
        assert not isinstance(self.head, PoolingHead)
        scores: Tensor = self.head(hidden)
        if cap := self.spec.head.soft_cap:
            scores = (scores / cap).tanh() * cap
        return scores
