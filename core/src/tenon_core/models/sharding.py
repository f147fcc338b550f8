"""One rank's part of a model (tensor parallelism): its spec, and its slices of a checkpoint's tensors.

    q, k, v, gate, up   [out, in]    a part of `out`: whole heads, features      x whole  -> a part of y
    out, down           [out, in]    the same part of `in`                       a part of x -> a sum's part of y

The ranks' results of out and down are added up (Shoeybi et al., arXiv 1909.08053); embedding, norms, routers and head
are whole on every rank. Since the model is data, a rank builds a smaller model and knows nothing of the others but that
sum. Every rank's part is equally large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tenon_platforms.errors import ConfigError
from tenon_platforms.formats.gguf_types import BY_NAME
from tenon_platforms.model import MLP, Layer, ModelSpec, MoE
from tenon_platforms.ops.linear import Dense, FP8Channel, GGUFBlocks, WeightScheme
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel, IntGroups
from tenon_platforms.ops.weights import PartTensors

from .family import WeightNames
from .weights import WeightSource

OUT, IN = -2, -1  # axes of [..., out, in]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Rank `index` of `size`."""

    index: int = 0
    size: int = 1

    def of(self, count: int, what: str) -> int:
        """This rank's share of `count`. Raises `ConfigError` where it is no whole number."""
        if count % self.size:
            raise ConfigError(
                f"tensor_parallel_size is {self.size}, which does not divide {what} ({count})",
                remedy="pass --tensor-parallel-size a divisor of it",
            )
        return count // self.size

    def slice(self, tensor: Tensor, axis: int, what: str) -> Tensor:
        """This rank's part of a tensor along an axis."""
        length = self.of(tensor.shape[axis], what)
        return tensor.narrow(axis, self.index * length, length).contiguous()


def rank_spec(spec: ModelSpec, rank: Rank) -> ModelSpec:
    """The model that one rank builds. Raises `ConfigError` where its parts cannot be equal."""
    return replace(spec, layers=tuple(_layer(layer, rank) for layer in spec.layers))


def _layer(layer: Layer, rank: Rank) -> Layer:
    mixer = replace(
        layer.mixer,
        num_heads=rank.of(layer.mixer.num_heads, "the number of attention heads"),
        num_kv_heads=rank.of(layer.mixer.num_kv_heads, "the number of KV heads"),
    )
    width = rank.of(layer.ffn.intermediate, "the width of the feed-forward layers")
    return replace(layer, mixer=mixer, ffn=replace(layer.ffn, intermediate=width))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSource:
    """A `WeightSource` that shows one rank's slices of another. axes: of the weights that are split, by name.

    alone: biases of products whose results are added up: one rank has them, the others zeros.
    """

    source: WeightSource
    rank: Rank
    axes: dict[str, int]
    alone: frozenset[str]

    @classmethod
    def of(cls, source: WeightSource, rank: Rank, spec: ModelSpec, names: WeightNames) -> RankSource:
        """For a whole model's spec."""
        axes: dict[str, int] = {}
        alone: list[str] = []
        for index, layer in enumerate(spec.layers):
            at = names.at(index)
            for module in (at.q, at.k, at.v):
                axes |= {f"{module}.weight": OUT, f"{module}.bias": IN}
            axes |= {f"{at.out}.weight": IN, at.sinks: IN}
            alone.append(f"{at.out}.bias")
            for module, axis in _ffn_modules(layer, at):
                axes[f"{module}.weight"] = axis
            if isinstance(layer.ffn, MLP):
                axes[f"{at.mlp_up}.bias"] = IN
                alone.append(f"{at.mlp_down}.bias")
        return cls(source=source, rank=rank, axes=axes, alone=frozenset(alone))

    def names(self) -> Iterable[str]:
        return self.source.names()

    def has(self, name: str) -> bool:
        return self.source.has(name)

    def scheme(self, name: str) -> WeightScheme:
        return self.source.scheme(name)

    def shape(self, name: str) -> tuple[int, ...]:
        shape, axis = list(self.source.shape(name)), self.axes.get(name)
        if axis is not None:
            shape[axis] = self.rank.of(shape[axis], f"axis {axis} of {name!r}")
        return tuple(shape)

    def tensors(self, name: str) -> PartTensors:
        tensors, axis = self.source.tensors(name), self.axes.get(name)
        if name in self.alone and self.rank.index:
            return {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
        if axis is None:
            return tensors
        scheme = self.source.scheme(name)
        grain = _grain(scheme, axis)
        if grain is None or self.shape(name)[axis] % grain:
            raise ConfigError(
                f"{name!r} is stored as {scheme.id}, which {self.rank.size} ranks cannot share: a rank's"
                f" {self.shape(name)[axis]} columns are no whole groups" + ("" if grain is None else f" of {grain}"),
                remedy="lower --tensor-parallel-size, or use a checkpoint that is quantized otherwise",
            )
        return {key: self._part(scheme, key, tensor, axis, name) for key, tensor in tensors.items()}

    def _part(self, scheme: WeightScheme, key: str, tensor: Tensor, axis: int, name: str) -> Tensor:
        """A tensor of a weight: those with an entry a column, or a run of columns, are split with the columns."""
        if key in ("weight", "blocks"):
            return self.rank.slice(tensor, axis, f"axis {axis} of {name!r}")
        if isinstance(scheme, (FP8Block, IntGroups)) and key in ("scale", "zero"):  # [..., out, groups]
            is_whole = axis == IN and isinstance(scheme, IntGroups) and not scheme.group_size
            return tensor if is_whole else self.rank.slice(tensor, axis, f"the {key}s of {name!r}")
        if key == "scale" and axis == OUT:  # [..., out]
            return self.rank.slice(tensor, -1, f"the scales of {name!r}")
        return tensor


def _ffn_modules(layer: Layer, at: WeightNames) -> list[tuple[str, int]]:
    """(module, axis) of a layer's feed-forward, of every expert of a mixture."""
    if isinstance(layer.ffn, MLP):
        return [(at.mlp_up, OUT), (at.mlp_down, IN)]
    axes = (OUT, OUT, IN)
    if isinstance(layer.ffn, MoE):
        each = [
            (pattern.format(e=expert), axis)
            for expert in range(layer.ffn.num_experts)
            for pattern, axis in zip(at.experts, axes, strict=True)
        ]
        return [*each, *zip(at.stacked_experts, axes, strict=True)]
    return [(at.gate, OUT), (at.up, OUT), (at.down, IN)]


def _grain(scheme: WeightScheme, axis: int) -> int | None:
    """Rows or columns that stay together; None: they cannot be parted."""
    if isinstance(scheme, FP8Block):
        return scheme.rows if axis == OUT else scheme.columns
    if axis == OUT or isinstance(scheme, (Dense, FP8Channel, FP8Static, Int8Channel)):
        return 1
    if isinstance(scheme, GGUFBlocks):
        return BY_NAME[scheme.type].elements
    if isinstance(scheme, IntGroups) and not scheme.ordered:
        return max(scheme.group_size, 2)
    return None
