"""Which reader a `quantization_config` is for: the entry-point group `tenon.quantization`, ours and others' alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenon_core.hookspecs import QUANTIZATION, registrations
from tenon_platforms.errors import ConfigError

from .module import Method

KEYS = ("quantization_config", "compression_config")
EXPRESSION = "re:"  # how a name in a list of modules says that it is an expression


def quantization_of(config: Mapping[str, Any], path: Path) -> Method | None:
    """The reader of a model's quantized weights; None: they are plain. Raises `ConfigError`. path: for messages."""
    for holder in (config, config.get("text_config")):
        if not isinstance(holder, dict):
            continue
        for key in KEYS:
            if described := holder.get(key):
                return _read(described, key, path)
    return None


def _read(described: Any, key: str, path: Path) -> Method:
    name = described.get("quant_method") if isinstance(described, dict) else None
    if name is None and key == "compression_config" and isinstance(described, dict):
        name = "compressed-tensors"  # what the library wrote before it named itself
    found = registrations(QUANTIZATION)
    if not isinstance(name, str) or name not in found:
        named = f"{name!r:.80}" if name else f"an unnamed method ({key})"
        raise ConfigError(
            f"{path}: the weights are quantized with {named}, which is not supported in safetensors checkpoints:"
            f" supported are {', '.join(sorted(found))}",
            remedy="use another checkpoint of the model, its unquantized one, or a GGUF of it",
        )
    method: Method = found[name].load()(described)
    return method
