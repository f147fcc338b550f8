"""One linear module of a quantized checkpoint: its stored tensors, checked, and the canonical weight they make.

What a module is follows from the tensors it has; its configuration says how to read them. Torch-free until a weight is
loaded. Every error names the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.linear import WeightScheme

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.weights import PartTensors


class TensorInfo(Protocol):
    """What an index says of a stored tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType | None: ...
    @property
    def num_bytes(self) -> int: ...


class Tensors(Protocol):
    """Stored tensors by name."""

    def names(self) -> Iterable[str]:
        """Every tensor's name."""
        ...

    def info(self, name: str) -> Any:
        """A `TensorInfo`."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor on the host."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedModule:
    """A weight [out, in]. stored: names of the tensors it is made of; load: its tensors, named as `scheme` says."""

    scheme: WeightScheme
    shape: tuple[int, int]
    stored: tuple[str, ...]
    load: Callable[[], PartTensors]


class Method(Protocol):
    """How one checkpoint is quantized: what a reader of the entry-point group `tenon.quantization` returns."""

    def module(self, tensors: ModuleTensors) -> QuantizedModule | None:
        """The weight of a module, or None where it is stored plainly. Raises `ConfigError` for what cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTensors:
    """The stored tensors of the module `name`: `name`.weight, `name`.weight_scale and so on, by their last word."""

    name: str
    held: frozenset[str]
    source: Tensors

    def has(self, word: str) -> bool:
        """Whether the module has this tensor."""
        return word in self.held

    def first(self, *words: str) -> str:
        """The first of these that the module has; raises `ConfigError` naming the first where it has none."""
        for word in words:
            if word in self.held:
                return word
        raise ConfigError(
            f"the checkpoint has no tensor {self.full(words[0])!r}, which its quantization_config calls for",
            remedy="download the checkpoint again, or use its unquantized form",
        )

    def full(self, word: str) -> str:
        """The tensor's whole name."""
        return f"{self.name}.{word}"

    def shape(self, word: str) -> tuple[int, ...]:
        """A tensor's stored shape."""
        shape: tuple[int, ...] = self.source.info(self.full(word)).shape
        return shape

    def dtype(self, word: str) -> DType | None:
        """A tensor's stored type."""
        dtype: DType | None = self.source.info(self.full(word)).dtype
        return dtype

    def matrix(self, word: str, *dtypes: DType) -> tuple[int, int]:
        """The shape of a two-dimensional tensor of one of `dtypes`."""
        shape = self.shape(word)
        if len(shape) != 2 or self.dtype(word) not in dtypes:
            raise self.wrong(word, f"a matrix of {_any(dtypes)}")
        return shape[0], shape[1]

    def expect(self, word: str, shapes: Iterable[tuple[int, ...]], *dtypes: DType) -> None:
        """Raise `ConfigError` unless the tensor is there with one of the shapes and one of the types."""
        self.first(word)
        wanted = list(shapes)
        if self.shape(word) not in wanted or self.dtype(word) not in dtypes:
            raise self.wrong(word, f"{' or '.join(str(list(shape)) for shape in wanted)} of {_any(dtypes)}")

    def wrong(self, word: str, wanted: str) -> ConfigError:
        """The error of a tensor that is not as its quantization says."""
        return ConfigError(
            f"tensor {self.full(word)!r} is {list(self.shape(word))} of {self.dtype(word)}: expected {wanted}",
            remedy="the file is damaged or its quantization_config is another model's: download the checkpoint again",
        )

    def read(self, word: str) -> Tensor:
        """The tensor on the host."""
        return self.source.read(self.full(word))

    def scale(self, word: str) -> Tensor:
        """A tensor of scales as float32; raises `ConfigError` where one is no finite number."""
        scale = self.read(word).float()
        self.check_finite(word, scale)
        return scale

    def check_finite(self, word: str, values: Tensor) -> None:
        """Raise `ConfigError` where a value is not finite."""
        if not bool(values.isfinite().all()):
            raise ConfigError(
                f"tensor {self.full(word)!r} holds a scale that is not finite", remedy="download the checkpoint again"
            )


def whole(config: Mapping[str, Any], key: str, allowed: Iterable[int] | None = None, *, least: int = 1) -> int:
    """A whole number of a quantization configuration; raises `ConfigError` where it is not one, or not `allowed`."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or (allowed is None and value < least):
        raise ConfigError(f"quantization_config has {key} = {value!r:.80}: expected a whole number from {least}")
    if allowed is not None and value not in (known := tuple(allowed)):
        raise ConfigError(
            f"quantization_config has {key} = {value}, which is not supported: supported are"
            f" {', '.join(map(str, known))}",
            remedy="use another checkpoint of the model, or a GGUF of it",
        )
    return value


def unsupported(what: str, known: str) -> ConfigError:
    """A quantization that is not read: its name, what is read, what to do."""
    return ConfigError(
        f"quantization_config asks for {what}, which is not supported: supported are {known}",
        remedy="use another checkpoint of the model, its unquantized one, or a GGUF of it",
    )


def _any(dtypes: tuple[DType, ...]) -> str:
    return " or ".join(map(str, dtypes))
