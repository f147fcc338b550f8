"""A checkpoint's tensors as the `WeightSource` that models are built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tenon_core.loading.tensors import TensorInfo, TensorSource
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.linear import Dense, GGUFBlocks, WeightScheme
from tenon_platforms.ops.weights import PartTensors


class CheckpointSource:
    """Tensors of one checkpoint. A scheme that the platform does not serve at all is refused by name."""

    def __init__(
        self, tensors: TensorSource, capabilities: Capabilities, rename: Callable[[str], str] = lambda name: name
    ) -> None:
        self._tensors = tensors
        self._stored = {rename(name): name for name in tensors.names()}
        self._names = frozenset(self._stored)
        self._capabilities = capabilities

    def names(self) -> Iterable[str]:
        return self._names

    def has(self, name: str) -> bool:
        return name in self._names

    def scheme(self, name: str) -> WeightScheme:
        scheme = scheme_of(self._tensors.info(self._stored[name]))
        if self._capabilities.scheme(scheme.id) is None:
            raise ConfigError(
                f"tensor {name!r} is stored as {scheme.id}, which this platform does not serve: it serves"
                f" {', '.join(self._capabilities.schemes)}"
            )
        return scheme

    def shape(self, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._tensors.info(self._stored[name]).shape
        return shape

    def tensors(self, name: str) -> PartTensors:
        key = "blocks" if isinstance(scheme_of(self._tensors.info(self._stored[name])), GGUFBlocks) else "weight"
        return {key: self._tensors.read(self._stored[name])}


def scheme_of(info: TensorInfo) -> WeightScheme:
    """How a stored tensor is to be read."""
    if info.gguf_type is not None and info.dtype is None:
        return GGUFBlocks(type=info.gguf_type)
    assert info.dtype is not None
    return Dense(stored=info.dtype)
