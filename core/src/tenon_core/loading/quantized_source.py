"""A quantized checkpoint as plain weights: every quantized module's tensors stand as one weight of their scheme.

Reading the index checks types and shapes of all of them; values are read when a weight is.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tenon_core.quantization.module import Method, ModuleTensors, QuantizedModule
from tenon_platforms.errors import ConfigError

from .tensors import TensorInfo, TensorSource

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.weights import PartTensors

LOG = logging.getLogger(__name__)
# Scales of a quantized KV cache, which has a type of its own here.
CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale")


class QuantizedSource:
    """A `TensorSource` over another one whose modules `method` reads."""

    def __init__(self, source: TensorSource, method: Method) -> None:
        self._source = source
        self._modules = _modules(source, method)
        within = {stored for module in self._modules.values() for stored in module.stored}
        names = tuple(source.names())
        self._plain = frozenset(name for name in names if name not in within and not name.endswith(CACHE_SCALES))
        if left := sum(name.endswith(CACHE_SCALES) for name in names):
            LOG.warning(
                "%d scales of a quantized KV cache are not used: --kv-cache-dtype says what it is kept in", left
            )

    def names(self) -> Iterable[str]:
        return (*self._modules, *self._plain)

    def info(self, name: str) -> TensorInfo:
        module = self._modules.get(name)
        if module is None:
            return self._source.info(name)
        size = sum(self._source.info(stored).num_bytes for stored in module.stored)
        return TensorInfo(name=name, shape=module.shape, num_bytes=size, quantized=module.scheme)

    def read(self, name: str) -> Tensor:
        if name in self._modules:
            raise ConfigError(f"tensor {name!r} is {self._modules[name].scheme.id}: it is read in parts")
        return self._source.read(name)

    def parts(self, name: str) -> PartTensors:
        module = self._modules.get(name)
        return self._source.parts(name) if module is None else module.load()

    def close(self) -> None:
        self._source.close()


def _modules(source: TensorSource, method: Method) -> dict[str, QuantizedModule]:
    """Weight name -> its module, of all that the method reads."""
    words: dict[str, set[str]] = defaultdict(set)
    for name in source.names():
        module, _, word = name.rpartition(".")
        words[module].add(word)
    found = {}
    for name, held in words.items():
        read = method.module(ModuleTensors(name=name, held=frozenset(held), source=source))
        if read is not None:
            found[f"{name}.weight"] = read
    return found
