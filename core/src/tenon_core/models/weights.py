"""Where a model's tensors come from, by the names a family gives them.

`WeightSource` is the little of a checkpoint that building needs, so that models depend on no file format. A dense
tensor comes in its stored type, a quantized one as blocks with its scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.linear import Dense, WeightScheme
from tenon_platforms.ops.weights import PartTensors
from torch import Tensor


class WeightSource(Protocol):
    """Tensors by name. `shape` counts elements, also of quantized tensors."""

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
        from tenon_platforms.ops.linear_reference import dense_weight

        return dense_weight(self.scheme(name), self.part(name, shape), dtype)

    def _require(self, name: str) -> None:
        if not self.source.has(name):
            raise ConfigError(f"the checkpoint has no tensor {name!r}, which the model's config calls for")


@dataclass(slots=True, kw_only=True)
class DummySource:
    """Random weights of the right shapes for benchmarks (`--load-format dummy`): normal, deviation 0.02, from a seed.

    shapes: name -> shape, filled by whoever builds the model's list of names.
    """

    shapes: dict[str, tuple[int, ...]]
    dtype: DType
    seed: int = 0
    deviation: float = 0.02

    def has(self, name: str) -> bool:
        return name in self.shapes

    def scheme(self, name: str) -> WeightScheme:
        return Dense(stored=self.dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def tensors(self, name: str) -> PartTensors:
        from tenon_platforms.torch_dtypes import to_torch

        seed = self.seed * 1_000_003 + sum(ord(character) * (place + 1) for place, character in enumerate(name))
        generator = torch.Generator().manual_seed(seed % (1 << 63))
        shape = self.shapes[name]
        if "norm" in name:
            return {"weight": torch.ones(shape, dtype=to_torch(self.dtype))}
        values = torch.empty(shape, dtype=torch.float32).normal_(0, self.deviation, generator=generator)
        return {"weight": values.to(to_torch(self.dtype))}
