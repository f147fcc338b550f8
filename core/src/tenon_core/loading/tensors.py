"""What every checkpoint format offers: tensors by name. Torch-free until a tensor is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tenon_platforms.dtypes import DType

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One stored tensor. shape counts elements, also of quantized tensors; num_bytes is what is stored.

    Either dtype is set (plain elements) or gguf_type is (blocks), never both.
    """

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    dtype: DType | None = None
    gguf_type: str | None = None

    @property
    def encoding(self) -> str:
        """`gguf` for blocks, `dense` for plain elements."""
        return "dense" if self.gguf_type is None else "gguf"


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

    def close(self) -> None:
        """Let go of the files. Tensors already read stay valid."""
        ...
