"""The index of a GGUF file (versions 2 and 3, little-endian), read with every number checked before it is used.

    magic, version | tensor count, key count | keys and values | tensor infos | padding | data

Counts and lengths are compared, as whole numbers of any size, with the bytes that are left, so memory is bounded by
the file's size. Arrays of token strings are walked in one tight loop. Source: docs/gguf.md of the ggml project.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenon_platforms.errors import ConfigError
from tenon_platforms.formats.gguf_types import BY_ID, KNOWN_NAMES, SUPPORTED, GGUFType

from .files import MIB, open_regular

MAGIC = b"GGUF"
MAX_METADATA_BYTES = 256 * MIB
MAX_ARRAY = 1 << 24
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 1_024
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_LEAST_KEY, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8  # bytes of the smallest entry of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """One tensor. shape: outermost axis first (the file counts innermost first). offset: from the file's begin."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GGUFFile:
    """A checked index (version, metadata, tensors) over its memory-mapped file (data)."""

    def __init__(self, path: Path) -> None:
        """Read and check the index; raises `ConfigError` at the first thing that does not add up."""
        with open_regular(path) as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ConfigError(
                    f"{path} is no valid GGUF file: it has {size} bytes, less than a header",
                    remedy="download it again",
                )
            data = _map(file.fileno(), size)
        self.path = path
        self.version, self.metadata, self.tensors = _Reader(path, data, size).read()
        self._data: mmap.mmap | None = data

    @property
    def data(self) -> mmap.mmap:
        """The whole file, mapped."""
        if self._data is None:
            raise ValueError(f"{self.path} was closed")
        return self._data

    def close(self) -> None:
        """Let go of the file. Tensors that look at its map hold it, so it goes with the last of them.

        The map is never closed by hand: torch takes the memory's address and holds the map as an object only, so
        closing it would pull the memory away under living tensors. Its pages are given back now, though: one small
        tensor that is used where it lies would hold all of them, and what is used is read again.
        """
        if self._data is not None and hasattr(mmap, "MADV_DONTNEED") and hasattr(mmap, "MAP_PRIVATE"):
            self._data.madvise(mmap.MADV_DONTNEED)
        self._data = None


def _map(descriptor: int, size: int) -> mmap.mmap:
    """Private and writable, for torch wants writable memory; nothing writes, so no page is copied or reserved."""
    if hasattr(mmap, "MAP_PRIVATE"):
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        return mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)


class _Reader:
    """A cursor over the file. `at` never passes `limit`."""

    def __init__(self, path: Path, mapped: mmap.mmap, size: int) -> None:
        self.path = path
        self.map = mapped
        self.size = size
        self.limit = min(size, MAX_METADATA_BYTES)
        self.at = 0

    def read(self) -> tuple[int, dict[str, Any], dict[str, GGUFTensor]]:
        version = self._version()
        num_tensors, num_keys = self._scalar("Q", "the tensor count"), self._scalar("Q", "the key count")
        self._check_count(num_keys, _LEAST_KEY, "keys")
        self._check_count(num_tensors, _LEAST_TENSOR, "tensors")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._name(MAX_KEY_BYTES, "a key")
            if key in metadata:
                raise self._broken(f"the key {key!r:.200} comes twice")
            metadata[key] = self._value(key)
        alignment = self._alignment(metadata)
        infos: dict[str, tuple[GGUFType, tuple[int, ...], int]] = {}
        for _ in range(num_tensors):
            name = self._name(MAX_NAME_BYTES, "a tensor's name")
            if name in infos:
                raise self._broken(f"the tensor {name!r:.200} comes twice")
            infos[name] = self._tensor_info(name)
        start = -(-self.at // alignment) * alignment
        tensors = {name: self._place(name, info, start, alignment) for name, info in infos.items()}
        self._check_overlap(tensors)
        return version, metadata, tensors

    def _version(self) -> int:
        if self.map[:4] != MAGIC:
            raise ConfigError(f"{self.path} is no GGUF file: it starts with {self.map[:4]!r}, not {MAGIC!r}")
        self.at = 4
        version = int(self._scalar("I", "the version"))
        if version and not version & 0xFFFF:
            raise ConfigError(
                f"{self.path} is a big-endian GGUF file, which is not supported",
                remedy="convert it with the gguf package: gguf-convert-endian FILE little",
            )
        if version == 1:
            raise ConfigError(
                f"{self.path} is a GGUF file of version 1, which is not supported: supported are 2 and 3",
                remedy="download a newer conversion of the model",
            )
        if version not in (2, 3):
            raise ConfigError(f"{self.path} is a GGUF file of version {version}: supported are 2 and 3")
        return version

    def _scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize(f"<{code}")
        self._need(size, what)
        if code == "?":
            byte = self.map[self.at]
            if byte > 1:
                raise self._broken(f"{what} is the truth value {byte}")
        (value,) = struct.unpack_from(f"<{code}", self.map, self.at)
        self.at += size
        return value

    def _need(self, size: int, what: str) -> None:
        if size > self.limit - self.at:
            where = "the file ends" if self.limit == self.size else f"more than {MAX_METADATA_BYTES} bytes of index"
            raise self._broken(f"{what} needs {size} bytes at {self.at}, but {where}: cut short?")

    def _check_count(self, count: int, least: int, what: str) -> None:
        if count * least > self.limit - self.at:
            raise self._broken(f"it claims {count} {what}, more than its {self.size} bytes can hold")

    def _bytes(self, most: int, what: str) -> bytes:
        length = self._scalar("Q", f"the length of {what}")
        if length > most:
            raise self._broken(f"{what} claims {length} bytes: expected at most {most}")
        self._need(length, what)
        value: bytes = self.map[self.at : self.at + length]
        self.at += length
        return value

    def _name(self, most: int, what: str) -> str:
        raw = self._bytes(most, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._broken(f"{what} is not UTF-8: {raw[:80]!r}") from None

    def _value(self, key: str) -> Any:
        what = f"the value of {key!r:.200}"
        kind = self._scalar("I", f"the type of {key!r:.200}")
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self._bytes(self.limit, what).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(what)
        raise self._broken(f"{what} has the unknown type {kind}")

    def _array(self, what: str) -> list[Any]:
        kind, count = self._scalar("I", f"the element type of {what}"), self._scalar("Q", f"the length of {what}")
        if count > MAX_ARRAY:
            raise self._broken(f"{what} claims {count} elements: expected at most {MAX_ARRAY}")
        if kind == _STRING:
            return self._strings(count, what)
        if kind == _ARRAY:
            raise self._broken(f"{what} is an array of arrays, which no known key is")
        if kind not in _SCALARS:
            raise self._broken(f"{what} has elements of the unknown type {kind}")
        code = "B" if kind == 7 else _SCALARS[kind]
        size = struct.calcsize(f"<{count}{code}")
        self._need(size, what)
        values = struct.unpack_from(f"<{count}{code}", self.map, self.at)
        self.at += size
        return [bool(value) for value in values] if kind == 7 else list(values)

    def _strings(self, count: int, what: str) -> list[str]:
        self._check_count(count, 8, f"strings in {what}")
        result: list[str] = []
        at, limit, read_length = self.at, self.limit, _LENGTH.unpack_from
        append, data = result.append, self.map
        for _ in range(count):
            if at + 8 > limit:
                break
            begin = at + 8
            at = begin + read_length(data, at)[0]
            if at > limit:
                break
            append(data[begin:at].decode("utf-8", "replace"))
        if len(result) != count:
            raise self._broken(f"string {len(result)} of {what} reaches past the end: cut short?")
        self.at = at
        return result

    def _alignment(self, metadata: dict[str, Any]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self._broken(f"general.alignment is {value!r:.80}: expected a power of two from 8 to {MAX_ALIGNMENT}")
        return int(value)

    def _tensor_info(self, name: str) -> tuple[GGUFType, tuple[int, ...], int]:
        dims = self._scalar("I", f"the dimension count of tensor {name!r:.200}")
        if not 1 <= dims <= MAX_DIMS:
            raise self._broken(f"tensor {name!r:.200} has {dims} dimensions: expected 1 to {MAX_DIMS}")
        extents = [self._scalar("Q", f"a dimension of tensor {name!r:.200}") for _ in range(dims)]
        if not all(extents):
            raise self._broken(f"tensor {name!r:.200} has the dimensions {extents}: none may be 0")
        number = self._scalar("I", f"the type of tensor {name!r:.200}")
        kind = BY_ID.get(number)
        if kind is None and number in KNOWN_NAMES:
            raise ConfigError(
                f"{self.path}: tensor {name!r:.200} is stored as {KNOWN_NAMES[number]}, and {KNOWN_NAMES[number]} is"
                f" not supported: supported are {', '.join(SUPPORTED)}",
                remedy="use another quantization of the model, such as Q4_K_M or Q8_0",
            )
        if kind is None:
            raise self._broken(f"tensor {name!r:.200} has the unknown type number {number}")
        return kind, tuple(reversed(extents)), self._scalar("Q", f"the offset of tensor {name!r:.200}")

    def _place(self, name: str, info: tuple[GGUFType, tuple[int, ...], int], start: int, alignment: int) -> GGUFTensor:
        kind, shape, offset = info
        if shape[-1] % kind.elements:
            raise self._broken(
                f"tensor {name!r:.200} has rows of {shape[-1]} values, no whole number of {kind.name} blocks of"
                f" {kind.elements}"
            )
        size = shape[-1] // kind.elements * kind.bytes
        for extent in shape[:-1]:
            size *= extent
        if offset % alignment:
            raise self._broken(f"tensor {name!r:.200} is at {offset}, which is not aligned to {alignment}")
        if start + offset + size > self.size:
            raise self._broken(
                f"tensor {name!r:.200} takes {size} bytes at {start + offset}, but the file has {self.size}: cut short?"
            )
        return GGUFTensor(name=name, type_name=kind.name, shape=shape, offset=start + offset, num_bytes=size)

    def _check_overlap(self, tensors: dict[str, GGUFTensor]) -> None:
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda one: one.offset):
            if tensor.offset < end:
                raise self._broken(f"tensors {before!r:.200} and {tensor.name!r:.200} overlap")
            end, before = tensor.offset + tensor.num_bytes, tensor.name

    def _broken(self, why: str) -> ConfigError:
        return ConfigError(f"{self.path} is no valid GGUF file: {why}", remedy="download it again")
