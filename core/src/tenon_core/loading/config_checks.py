"""What no model's configuration may say: code to run, a quantization that is not read, sizes beyond all reason.

Families check what they read; these are the values that would do harm before a family looks at them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenon_platforms.errors import ConfigError

MAX_LAYERS = 4096  # layers become objects: a number alone must not fill the memory
CODE_KEYS = ("auto_map", "trust_remote_code", "custom_code", "custom_pipelines")


def refuse_code(content: Any, path: Path) -> None:
    """Refuse a file that asks for code of the model's folder to be run, at any depth."""
    if isinstance(content, dict):
        for key in CODE_KEYS:
            if content.get(key):
                raise ConfigError(
                    f"{path} asks to run code from the model's folder ({key}): Tenon never does",
                    remedy="use a model whose architecture is built in, or remove the entry if the architecture is",
                )
        for value in content.values():
            refuse_code(value, path)
    elif isinstance(content, list):
        for value in content:
            refuse_code(value, path)


def check_config(config: dict[str, Any], path: Path) -> None:
    """Refuse quantized weights that are not read, and sizes that name more layers than any model has."""
    for holder in (config, config.get("text_config")):
        if not isinstance(holder, dict):
            continue
        for key in ("quantization_config", "compression_config"):
            if holder.get(key):
                _refuse_quantization(holder[key], key, path)
        layers = holder.get("num_hidden_layers")
        if isinstance(layers, int) and layers > MAX_LAYERS:
            raise ConfigError(f"{path} has num_hidden_layers = {layers}: expected at most {MAX_LAYERS}")


def _refuse_quantization(described: Any, key: str, path: Path) -> None:
    method = described.get("quant_method") if isinstance(described, dict) else None
    named = repr(method)[:80] if method else f"an unnamed method ({key})"
    raise ConfigError(
        f"{path}: the weights are quantized with {named}, which is not supported in safetensors checkpoints",
        remedy="use the model's unquantized checkpoint, or a GGUF of it",
    )
