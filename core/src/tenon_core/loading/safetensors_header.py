"""The index of a safetensors file, checked with whole numbers of any size before a native library sees the file.

    8 bytes: header length N, little-endian | N bytes: JSON {name: {dtype, shape, data_offsets: [begin, end]}} | data

Offsets count from the data's start and must tile it: no gap, no overlap, nothing behind the last tensor.
Source: the format description of the safetensors project.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError

from .files import MIB, open_regular, parse_json
from .tensors import TensorInfo

MAX_HEADER_BYTES = 32 * MIB
MAX_TENSORS = 100_000  # of one file
MAX_DIMS = 8
CONVERT = (
    "only safetensors and GGUF are read: convert it where you trust it, for instance with Transformers'"
    " model.save_pretrained(FOLDER, safe_serialization=True)"
)
SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I64": 8, "I32": 4, "I16": 2,
    "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
DTYPES = {
    "F64": DType.FLOAT64,
    "F32": DType.FLOAT32,
    "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "F8_E4M3": DType.FLOAT8_E4M3,
    "F8_E5M2": DType.FLOAT8_E5M2,
    "I64": DType.INT64,
    "I32": DType.INT32,
    "I8": DType.INT8,
    "U8": DType.UINT8,
    "BOOL": DType.BOOL,
}
# Marks one tensor's entry has at most: counted before parsing makes an object of each.
_MOST_MARKS = {b"[": 2, b":": 4, b",": MAX_DIMS + 4}
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One entry of the index. begin and end: bytes from the data's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def info(self) -> TensorInfo:
        """As the engine sees it; raises for a type that the contract does not name."""
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"tensor {self.name!r} is stored as {self.dtype}, which is not supported: supported are"
                f" {', '.join(DTYPES)}"
            )
        return TensorInfo(
            name=self.name,
            shape=self.shape,
            dtype=DTYPES[self.dtype],
            num_bytes=self.end - self.begin,
        )


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file; raises `ConfigError` at the first thing that does not add up."""
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(8)
        if start.startswith(_PICKLE_STARTS):
            raise ConfigError(f"{path} is a pickle, not safetensors", remedy=CONVERT)
        if len(start) < 8:
            raise _broken(path, f"it has {size} bytes, less than a header")
        length = int.from_bytes(start, "little")
        if length > size - 8:
            raise _broken(path, f"its header claims {length} bytes, but {size - 8} follow: cut short?")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise _broken(path, f"its header claims {length} bytes: expected 2 to {MAX_HEADER_BYTES}")
        header = file.read(length)
    if not header.startswith(b"{"):
        raise _broken(path, "its header does not start with '{'")
    if any(header.count(mark) > most * MAX_TENSORS for mark, most in _MOST_MARKS.items()):
        raise _broken(path, f"it lists more than {MAX_TENSORS} tensors")
    entries = parse_json(header, f"the header of {path}")
    _check_metadata(path, entries.pop("__metadata__", None))
    if len(entries) > MAX_TENSORS:
        raise _broken(path, f"it lists {len(entries)} tensors: expected at most {MAX_TENSORS}")
    tensors = {name: _tensor(path, name, entry) for name, entry in entries.items()}
    _check_tiling(path, tensors, size - 8 - length)
    return tensors


def _check_metadata(path: Path, metadata: Any) -> None:
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise _broken(path, "its __metadata__ is no table of texts")


def _tensor(path: Path, name: str, entry: Any) -> StoredTensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, f"tensor {name!r:.200} is no {{dtype, shape, data_offsets}}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise _broken(path, f"tensor {name!r:.200} has the unknown type {dtype!r:.80}: known are {', '.join(SIZES)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(_is_count(one) for one in shape):
        raise _broken(path, f"tensor {name!r:.200} has the shape {shape!r:.200}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(one) for one in offsets):
        raise _broken(path, f"tensor {name!r:.200} has the offsets {offsets!r:.200}")
    expected = SIZES[dtype]
    for extent in shape:
        expected *= extent
    begin, end = offsets
    if end - begin != expected:
        raise _broken(
            path, f"tensor {name!r:.200} of {dtype} {shape} needs {expected} bytes, its offsets are {begin} to {end}"
        )
    return StoredTensor(name=name, dtype=dtype, shape=tuple(shape), begin=begin, end=end)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _check_tiling(path: Path, tensors: dict[str, StoredTensor], data_bytes: int) -> None:
    at = 0
    for tensor in sorted(tensors.values(), key=lambda one: (one.begin, one.end)):
        if tensor.begin != at:
            kind = "overlaps the one before" if tensor.begin < at else "leaves a gap before it"
            raise _broken(path, f"tensor {tensor.name!r:.200} at byte {tensor.begin} {kind}, which ends at {at}")
        at = tensor.end
    if at != data_bytes:
        kind = "cut short" if at > data_bytes else "bytes behind the last tensor"
        raise _broken(path, f"its tensors take {at} bytes, but {data_bytes} follow the header ({kind})")


def _broken(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is no valid safetensors file: {why}", remedy="download it again")
