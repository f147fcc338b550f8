"""A GGUF as a Hugging-Face-named checkpoint: its config, and its tensors straight from the memory map."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.formats.gguf_types import BY_NAME

from .gguf_config import hf_config
from .gguf_file import GGUFFile
from .gguf_names import ROPE_FACTORS, NamedTensor, named_tensors
from .tensors import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.weights import PartTensors


class GGUFSource:
    """A `TensorSource` over one GGUF file. config: what config.json would say."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        parts = file.metadata.get("split.count")
        if isinstance(parts, int) and parts > 1:
            raise ConfigError(
                f"{file.path} is one of {parts} parts of a model, which are not read singly",
                remedy="merge them with llama.cpp's llama-gguf-split --merge FIRST_PART OUT.gguf",
            )
        self.config: dict[str, Any] = hf_config(file, _rope_factors(file))
        self._tensors = named_tensors(file)
        self._check_heads()

    def names(self) -> Iterable[str]:
        return self._tensors

    def info(self, name: str) -> TensorInfo:
        stored = self._named(name).stored
        dtype = BY_NAME[stored.type_name].dtype
        return TensorInfo(
            name=name,
            shape=stored.shape,
            num_bytes=stored.num_bytes,
            dtype=dtype,
            gguf_type=None if dtype is not None else stored.type_name,
        )

    def read(self, name: str) -> Tensor:
        import torch

        from tenon_platforms.torch_dtypes import to_torch

        named = self._named(name)
        stored, kind = named.stored, BY_NAME[named.stored.type_name]
        flat = torch.frombuffer(self._file.data, dtype=torch.uint8, offset=stored.offset, count=stored.num_bytes)
        if kind.dtype is None:
            tensor = flat.view(*stored.shape[:-1], stored.shape[-1] // kind.elements * kind.bytes)
        else:
            tensor = flat.view(to_torch(kind.dtype)).view(stored.shape)
        if named.change == "unpermute":
            return unpermute(tensor, self._heads(name))
        return tensor - 1 if named.change == "minus_one" else tensor

    def parts(self, name: str) -> PartTensors:
        kind = BY_NAME[self._named(name).stored.type_name]
        return {"blocks" if kind.dtype is None else "weight": self.read(name)}

    def close(self) -> None:
        self._file.close()

    def _named(self, name: str) -> NamedTensor:
        if name not in self._tensors:
            raise ConfigError(f"{self._file.path} has no tensor {name!r:.200}")
        return self._tensors[name]

    def _heads(self, name: str) -> int:
        heads = self.config["num_key_value_heads" if ".k_proj." in name else "num_attention_heads"]
        return int(heads)

    def _check_heads(self) -> None:
        for name, named in self._tensors.items():
            if named.change == "unpermute" and named.stored.shape[0] % (2 * self._heads(name)):
                raise ConfigError(
                    f"{self._file.path}: tensor {named.stored.name!r} has {named.stored.shape[0]} rows, which"
                    f" {self._heads(name)} heads of even dimensions do not divide"
                )


def unpermute(rows: Tensor, heads: int) -> Tensor:
    """Rows stored as neighbouring pairs back to halves: [heads * 2 pairs, ...] of any type, blocks included.

    In each head, row 2 i is the i-th of the first half and row 2 i + 1 the i-th of the second.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _rope_factors(file: GGUFFile) -> tuple[float, ...] | None:
    stored = file.tensors.get(ROPE_FACTORS)
    if stored is None:
        return None
    if stored.type_name != "F32" or len(stored.shape) != 1 or stored.shape[0] > 4096:
        raise ConfigError(f"{file.path}: {ROPE_FACTORS} is {stored.type_name} {list(stored.shape)}: expected F32 [n]")
    factors = struct.unpack_from(f"<{stored.shape[0]}f", file.data, stored.offset)
    if not all(0 < one < math.inf for one in factors):
        raise ConfigError(f"{file.path}: {ROPE_FACTORS} holds a value that is no number above 0")
    return factors
