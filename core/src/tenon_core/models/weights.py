"""Where a model's tensors come from, by the names a family gives them.

`WeightSource` is the little of a checkpoint that building needs, so that models depend on no file format. A dense
tensor comes in its stored type, a quantized one as blocks with its scheme.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.model import MLP, ModelSpec, MoE, NormSpec
from tenon_platforms.ops.linear import Dense, WeightScheme
from tenon_platforms.ops.linear_reference import dense_weight
from tenon_platforms.ops.weights import PartTensors
from tenon_platforms.torch_dtypes import to_torch

from .family import WeightNames


class WeightSource(Protocol):
    """Tensors by name. `shape` counts elements, also of quantized tensors."""

    def names(self) -> Iterable[str]:
        """Every tensor's name."""
        ...

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`."""
        ...

    def scheme(self, name: str) -> WeightScheme:
        """How it is stored."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Its logical shape."""
        ...

    def tensors(self, name: str) -> PartTensors:
        """Its tensors, named by the scheme, on the host."""
        ...


@dataclass(slots=True, kw_only=True)
class WeightReader:
    """Reads checked tensors of a source onto a device and counts what was never asked for.

    to_device: moves a host tensor. on_read: called with each name, for progress.
    """

    source: WeightSource
    to_device: Callable[[Tensor], Tensor]
    on_read: Callable[[str], None] = lambda name: None
    used: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`."""
        return self.source.has(name)

    def unused(self) -> list[str]:
        """Tensors that nothing asked for: a sign that the configuration does not tell the whole model."""
        return sorted(set(self.source.names()) - self.used)

    def scheme(self, name: str) -> WeightScheme:
        """How `name` is stored; raises `ConfigError` where it is missing."""
        self._require(name)
        return self.source.scheme(name)

    def part(self, name: str, shape: tuple[int, ...]) -> PartTensors:
        """The tensors of one weight of logical `shape`."""
        self._require(name)
        found = self.source.shape(name)
        if found != shape:
            raise ConfigError(f"tensor {name!r} has shape {list(found)}, the model's config says {list(shape)}")
        self.used.add(name)
        self.on_read(name)
        return {key: self.to_device(tensor) for key, tensor in self.source.tensors(name).items()}

    def dense(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A small dense tensor (norms, biases) in `dtype`, expanded where it is stored otherwise."""
        return dense_weight(self.scheme(name), self.part(name, shape), dtype)

    def _require(self, name: str) -> None:
        if not self.source.has(name):
            raise ConfigError(f"the checkpoint has no tensor {name!r}, which the model's config calls for")


@dataclass(slots=True, kw_only=True)
class DummySource:
    """Random weights for benchmarks and tests (`--load-format dummy`): normal, from a seed; norms are ones.

    shapes: name -> shape. torch_device: where they are made, a large model in seconds where that is an accelerator. On
    one kind of device a tensor's values depend on its name and the seed alone.
    """

    shapes: dict[str, tuple[int, ...]]
    dtype: DType
    seed: int = 0
    deviation: float = 0.02
    torch_device: Any = "cpu"

    @classmethod
    def for_model(
        cls, spec: ModelSpec, names: WeightNames, *, dtype: DType, seed: int = 0, torch_device: Any = "cpu"
    ) -> DummySource:
        """Every tensor that building `spec` reads."""
        return cls(shapes=dict(tensor_shapes(spec, names)), dtype=dtype, seed=seed, torch_device=torch_device)

    def names(self) -> Iterable[str]:
        return self.shapes

    def has(self, name: str) -> bool:
        return name in self.shapes

    def scheme(self, name: str) -> WeightScheme:
        return Dense(stored=self.dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def tensors(self, name: str) -> PartTensors:
        shape, dtype = self.shapes[name], to_torch(self.dtype)
        if "norm" in name.lower() and name.endswith(".weight"):
            return {"weight": torch.ones(shape, dtype=dtype, device=self.torch_device)}
        generator = torch.Generator(self.torch_device).manual_seed(zlib.crc32(name.encode(), self.seed))
        weight = torch.empty(shape, dtype=torch.float32, device=self.torch_device)
        return {"weight": weight.normal_(0, self.deviation, generator=generator).to(dtype)}


def tensor_shapes(spec: ModelSpec, names: WeightNames) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor that building `spec` reads; experts one by one."""
    hidden = spec.hidden
    yield f"{names.embedding}.weight", (spec.vocab_size, hidden)
    yield from _norm_shapes(spec, spec.final_norm, names.at(len(spec.layers)).final_norm)
    if spec.learned_positions is not None:
        yield f"{names.positions}.weight", (spec.learned_positions.count, hidden)
    if spec.token_types:
        yield f"{names.token_types}.weight", (spec.token_types, hidden)
    if spec.head.kind != "language_model":
        width = hidden
        for head_layer, name in zip(spec.head.layers, names.head_layers, strict=True):
            yield f"{name}.weight", (head_layer.out_features, width)
            if head_layer.bias:
                yield f"{name}.bias", (head_layer.out_features,)
            width = head_layer.out_features
    elif not spec.head.tied:
        yield f"{names.head}.weight", (spec.vocab_size, hidden)
    for index, layer in enumerate(spec.layers):
        at, mixer, ffn = names.at(index), layer.mixer, layer.ffn
        query, keys = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
        for name, features in ((at.q, query), (at.k, keys), (at.v, keys)):
            yield f"{name}.weight", (features, hidden)
            if mixer.qkv_bias:
                yield f"{name}.bias", (features,)
        yield f"{at.out}.weight", (hidden, query)
        if mixer.out_bias:
            yield f"{at.out}.bias", (hidden,)
        if mixer.qk_norm is not None:
            yield f"{at.q_norm}.weight", (mixer.head_dim,)
            yield f"{at.k_norm}.weight", (mixer.head_dim,)
        if mixer.sinks:
            yield at.sinks, (mixer.num_heads,)
        first = at.first_norm if spec.post_norm and not index else at.pre_mixer
        norms = ((layer.pre_mixer, first), (layer.pre_ffn, at.pre_ffn))
        for norm, name in (*norms, (layer.post_mixer, at.post_mixer), (layer.post_ffn, at.post_ffn)):
            if norm is not None and name:
                yield from _norm_shapes(spec, norm, name)
        if isinstance(ffn, MLP):
            for name, shape in ((at.mlp_up, (ffn.intermediate, hidden)), (at.mlp_down, (hidden, ffn.intermediate))):
                yield f"{name}.weight", shape
                if ffn.bias:
                    yield f"{name}.bias", shape[:1]
            continue
        shapes = ((ffn.intermediate, hidden), (ffn.intermediate, hidden), (hidden, ffn.intermediate))
        if isinstance(ffn, MoE):
            yield f"{at.router}.weight", (ffn.num_experts, hidden)
            for expert in range(ffn.num_experts):
                for pattern, shape in zip(at.experts, shapes, strict=True):
                    yield f"{pattern.format(e=expert)}.weight", shape
        else:
            for name, shape in zip((at.gate, at.up, at.down), shapes, strict=True):
                yield f"{name}.weight", shape


def _norm_shapes(spec: ModelSpec, norm: NormSpec, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (spec.hidden,)
    if norm.kind == "layer":
        yield f"{name}.bias", (spec.hidden,)
