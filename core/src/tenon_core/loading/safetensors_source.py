"""Tensors of a safetensors checkpoint: one file, or shards named by model.safetensors.index.json.

Every header is checked (`safetensors_header.py`) before the safetensors library maps a file. Pickle checkpoints are
refused; there is no fallback to them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon_platforms.errors import ConfigError

from .files import MIB, confined, read_json
from .safetensors_header import CONVERT, StoredTensor, read_header
from .tensors import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.weights import PartTensors

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_INDEX_BYTES = 64 * MIB
MAX_SHARDS = 4096
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pt2", ".pkl", ".pickle")


class SafetensorsSource:
    """A `TensorSource` over checked files. files: tensor name -> the file that holds it."""

    def __init__(
        self, tensors: dict[str, StoredTensor], files: dict[str, Path], stored: dict[str, str] | None = None
    ) -> None:
        self._tensors = tensors
        self._files = files
        self._stored = stored or {}  # name -> the name in its file, where that is another
        self._open: dict[Path, Any] = {}

    @classmethod
    def open_folder(cls, folder: Path) -> SafetensorsSource:
        """The checkpoint of a folder: its index, else its one safetensors file."""
        if os.path.lexists(folder / INDEX):
            return cls._open_sharded(folder)
        return cls.open_file(confined(folder, _single_name(folder), named_by=str(folder)))

    @classmethod
    def open_file(cls, path: Path) -> SafetensorsSource:
        """One file."""
        tensors = read_header(path)
        return cls(tensors, dict.fromkeys(tensors, path))

    @classmethod
    def _open_sharded(cls, folder: Path) -> SafetensorsSource:
        index = confined(folder, INDEX, named_by=str(folder))
        weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(one, str) for one in weight_map.values()):
            raise ConfigError(f"{index} has no weight_map of tensor names to file names")
        shards = sorted(set(weight_map.values()))
        if not shards or len(shards) > MAX_SHARDS:
            raise ConfigError(f"{index} names {len(shards)} files: expected 1 to {MAX_SHARDS}")
        headers: dict[str, dict[str, StoredTensor]] = {}
        paths: dict[str, Path] = {}
        for shard in shards:
            if not shard.endswith(".safetensors"):
                remedy = CONVERT if shard.endswith(PICKLE_SUFFIXES) else None
                raise ConfigError(f"{index} names {shard!r:.200}, which is no safetensors file", remedy=remedy)
            paths[shard] = confined(folder, shard, named_by=str(index))
            headers[shard] = read_header(paths[shard])
        for name, shard in weight_map.items():
            if name not in headers[shard]:
                raise ConfigError(f"{index} says that {shard!r} holds the tensor {name!r:.200}, but it does not")
        return cls(
            {name: headers[shard][name] for name, shard in weight_map.items()},
            {name: paths[shard] for name, shard in weight_map.items()},
        )

    def joined(self, prefix: str, other: SafetensorsSource) -> SafetensorsSource:
        """These tensors and another source's, whose names get a prefix."""
        renamed = {f"{prefix}.{name}": name for name in other._tensors}
        return SafetensorsSource(
            {**self._tensors, **{name: other._tensors[old] for name, old in renamed.items()}},
            {**self._files, **{name: other._files[old] for name, old in renamed.items()}},
            {**self._stored, **renamed},
        )

    def names(self) -> Iterable[str]:
        return self._tensors

    def info(self, name: str) -> TensorInfo:
        if name not in self._tensors:
            raise ConfigError(f"the checkpoint has no tensor {name!r}")
        return self._tensors[name].info()

    def read(self, name: str) -> Tensor:
        self.info(name)
        path = self._files[name]
        if path not in self._open:
            from safetensors import SafetensorError, safe_open

            try:
                self._open[path] = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{path} cannot be read: {error}", remedy="download it again") from error
        tensor: Tensor = self._open[path].get_tensor(self._stored.get(name, name))
        return tensor

    def parts(self, name: str) -> PartTensors:
        return {"weight": self.read(name)}

    def close(self) -> None:
        self._open.clear()


def _single_name(folder: Path) -> str:
    if os.path.lexists(folder / SINGLE):
        return SINGLE
    found = sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors")
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{folder} holds {len(found)} safetensors files ({', '.join(found[:4])}, ...) and no {INDEX} that says"
            " which belong together"
        )
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise ConfigError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run any code when it is loaded",
            remedy=CONVERT,
        )
    raise ConfigError(f"{folder} holds no weights: expected {SINGLE}, {INDEX} or a .gguf file")
