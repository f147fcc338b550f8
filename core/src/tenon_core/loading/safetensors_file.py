"""Safetensors checkpoints: one file, or shards with an index. Headers are checked before the library sees them.

Source: the safetensors format. 8 bytes little-endian header length, a JSON header of name -> dtype, shape and
data_offsets, then the data, without gaps or overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError

from .bounded_json import parse_json_object, read_json_object
from .tensors import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100 * 10**6
_DTYPES = {
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


@dataclass(slots=True, kw_only=True)
class _Shard:
    path: Path
    infos: dict[str, TensorInfo]
    handle: Any = None


class SafetensorsSource:
    """All tensors of a folder's safetensors files. Raises `ConfigError` that names the file and what is wrong."""

    def __init__(self, paths: list[Path]) -> None:
        self._shards = [_Shard(path=path, infos=read_header(path)) for path in paths]
        self._owner: dict[str, _Shard] = {}
        for shard in self._shards:
            for name in shard.infos:
                if name in self._owner:
                    raise ConfigError(f"tensor {name!r} is in two files: {self._owner[name].path} and {shard.path}")
                self._owner[name] = shard

    @classmethod
    def from_folder(cls, folder: Path) -> SafetensorsSource:
        """The folder's model.safetensors, or the shards its index names."""
        index = folder / INDEX_NAME
        if index.is_file():
            return cls(_shards_of(index))
        single = folder / "model.safetensors"
        return cls([single] if single.is_file() else sorted(folder.glob("*.safetensors")))

    def names(self) -> Iterable[str]:
        return self._owner

    def info(self, name: str) -> TensorInfo:
        return self._owner[name].infos[name]

    def read(self, name: str) -> Tensor:
        shard = self._owner[name]
        if shard.handle is None:
            from safetensors import SafetensorError, safe_open

            try:
                shard.handle = safe_open(shard.path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{shard.path} cannot be read: {error}") from error
        tensor: Tensor = shard.handle.get_tensor(name)
        return tensor

    def close(self) -> None:
        for shard in self._shards:
            shard.handle = None


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Checked tensor infos of one file."""
    if not path.is_file():
        raise ConfigError(f"{path} does not exist or is no regular file")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise ConfigError(f"{path} is truncated: {size} bytes are no safetensors file")
        length = int.from_bytes(start, "little")
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise ConfigError(f"{path} is damaged or truncated: its header claims {length} bytes, the file has {size}")
        header = parse_json_object(file.read(length), f"{path}: header")
    header.pop("__metadata__", None)
    infos = {name: _info(path, name, entry) for name, entry in header.items()}
    _check_layout(path, header, infos, size - 8 - length)
    return infos


def _info(path: Path, name: str, entry: Any) -> TensorInfo:
    if not isinstance(entry, dict):
        raise ConfigError(f"{path}: tensor {name!r} has no description")
    dtype, shape = _DTYPES.get(str(entry.get("dtype"))), entry.get("shape")
    if dtype is None:
        raise ConfigError(f"{path}: tensor {name!r} has the type {entry.get('dtype')!r}, which is not supported")
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
        raise ConfigError(f"{path}: tensor {name!r} has the shape {shape!r:.80}")
    num_bytes = dtype.num_bytes
    for count in shape:
        num_bytes *= count
    return TensorInfo(name=name, shape=tuple(shape), num_bytes=num_bytes, dtype=dtype)


def _check_layout(path: Path, header: dict[str, Any], infos: dict[str, TensorInfo], available: int) -> None:
    """Offsets follow each other without gap or overlap to the end of the file."""
    spans = []
    for name, info in infos.items():
        offsets = header[name].get("data_offsets")
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_count, offsets))):
            raise ConfigError(f"{path}: tensor {name!r} has the offsets {offsets!r:.80}")
        if offsets[1] - offsets[0] != info.num_bytes:
            raise ConfigError(
                f"{path}: tensor {name!r} spans {offsets[1] - offsets[0]} bytes; its type and shape need"
                f" {info.num_bytes}"
            )
        spans.append((offsets[0], offsets[1], name))
    end = 0
    for start, stop, name in sorted(spans):
        if start != end:
            raise ConfigError(f"{path}: tensor {name!r} starts at byte {start}, where {end} is expected")
        end = stop
    if end != available:
        raise ConfigError(
            f"{path} is damaged or truncated: its tensors need {end} bytes, {available} follow the header"
        )


def _shards_of(index: Path) -> list[Path]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index} has no weight_map")
    folder, paths = index.parent.resolve(), []
    for shard in sorted({str(value) for value in weight_map.values()}):
        path = (folder / shard).resolve()
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ConfigError(f"{index} names the shard {shard!r}: shards are .safetensors files beside the index")
        if path.parent != folder and not _is_hub_blob(folder, path):
            raise ConfigError(f"{index}: shard {shard!r} leads out of the model's folder, to {path}")
        paths.append(index.parent / shard)
    return paths


def _is_hub_blob(folder: Path, target: Path) -> bool:
    """The hub's cache links snapshots/REVISION/FILE to blobs/HASH of the same model."""
    return folder.parent.name == "snapshots" and target.parent == folder.parent.parent / "blobs"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
