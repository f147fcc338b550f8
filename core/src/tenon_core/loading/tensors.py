"""What every checkpoint format offers: tensors by name. Torch-free until a tensor is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.linear import Dense, GGUFBlocks, WeightScheme

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.weights import PartTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One stored tensor. shape counts elements, also of quantized tensors; num_bytes is what is stored.

    One of dtype (plain elements), gguf_type (blocks) and quantized (several tensors, one weight) is set.
    """

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    dtype: DType | None = None
    gguf_type: str | None = None
    quantized: WeightScheme | None = None

    @property
    def scheme(self) -> WeightScheme:
        """How it is to be read."""
        if self.quantized is not None:
            return self.quantized
        if self.gguf_type is not None:
            return GGUFBlocks(type=self.gguf_type)
        assert self.dtype is not None
        return Dense(stored=self.dtype)


class TensorSource(Protocol):
    """The tensors of one checkpoint, by Hugging Face's names."""

    def names(self) -> Iterable[str]:
        """Every tensor's name."""
        ...

    def info(self, name: str) -> TensorInfo:
        """What is stored under `name`; raises `ConfigError` where there is nothing."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor on the host, memory-mapped where possible; not to be written to.

        Dense: [*shape] of the stored dtype. GGUF blocks: uint8 [*shape[:-1], bytes of a row].
        """
        ...

    def parts(self, name: str) -> PartTensors:
        """The same weight as its scheme names its tensors."""
        ...

    def close(self) -> None:
        """Let go of the files. Tensors already read stay valid."""
        ...
