"""A checkpoint's tensors as the `WeightSource` that models are built from."""

from __future__ import annotations

from collections.abc import Iterable

from tenon_core.loading.tensors import TensorInfo, TensorSource
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.linear import Dense, GGUFBlocks, WeightScheme
from tenon_platforms.ops.weights import PartTensors


class CheckpointSource:
    """Tensors of one checkpoint. A scheme that the platform does not serve at all is refused by name."""

    def __init__(self, tensors: TensorSource, capabilities: Capabilities) -> None:
        self._tensors = tensors
        self._names = frozenset(tensors.names())
        self._capabilities = capabilities

    def names(self) -> Iterable[str]:
        return self._names

    def has(self, name: str) -> bool:
        return name in self._names

    def scheme(self, name: str) -> WeightScheme:
        scheme = scheme_of(self._tensors.info(name))
        if self._capabilities.scheme(scheme.id) is None:
            raise ConfigError(
                f"tensor {name!r} is stored as {scheme.id}, which this platform does not serve: it serves"
                f" {', '.join(self._capabilities.schemes)}"
            )
        return scheme

    def shape(self, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._tensors.info(name).shape
        return shape

    def tensors(self, name: str) -> PartTensors:
        key = "blocks" if isinstance(scheme_of(self._tensors.info(name)), GGUFBlocks) else "weight"
        return {key: self._tensors.read(name)}


def scheme_of(info: TensorInfo) -> WeightScheme:
    """How a stored tensor is to be read."""
    if info.gguf_type is not None and info.dtype is None:
        return GGUFBlocks(type=info.gguf_type)
    assert info.dtype is not None
    return Dense(stored=info.dtype)
