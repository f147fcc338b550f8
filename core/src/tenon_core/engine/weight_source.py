"""A checkpoint's tensors as the `WeightSource` that models are built from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tenon_core.loading.tensors import TensorSource
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.linear import Dense, GGUFBlocks, WeightScheme
from tenon_platforms.ops.weights import PartTensors

LOG = logging.getLogger(__name__)


class CheckpointSource:
    """Tensors of one checkpoint. What the platform does not serve at all is refused by name."""

    def __init__(
        self, tensors: TensorSource, capabilities: Capabilities, rename: Callable[[str], str] = lambda name: name
    ) -> None:
        self._tensors = tensors
        self._stored = {rename(name): name for name in tensors.names()}
        self._names = frozenset(self._stored)
        self._capabilities = capabilities
        self._told: set[str] = set()

    def names(self) -> Iterable[str]:
        return self._names

    def has(self, name: str) -> bool:
        return name in self._names

    def scheme(self, name: str) -> WeightScheme:
        scheme: WeightScheme = self._tensors.info(self._stored[name]).scheme
        if self._capabilities.scheme(scheme.id) is None:
            self._unclaimed(name, scheme)
        return scheme

    def shape(self, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._tensors.info(self._stored[name]).shape
        return shape

    def tensors(self, name: str) -> PartTensors:
        parts: PartTensors = self._tensors.parts(self._stored[name])
        return parts

    def _unclaimed(self, name: str, scheme: WeightScheme) -> None:
        """A scheme younger than the platform is served by the contract's reference; other types are refused."""
        if isinstance(scheme, (Dense, GGUFBlocks)):
            raise ConfigError(
                f"tensor {name!r} is stored as {scheme.id}, which this platform does not serve: it serves"
                f" {', '.join(self._capabilities.schemes)}"
            )
        if scheme.id not in self._told:
            self._told.add(scheme.id)
            LOG.warning(
                "this platform says nothing of weights stored as %s: where it offers no kernel, slow reference kernels"
                " of the contract serve them",
                scheme.id,
            )
