"""What no model's configuration may say: code to run, expressions that may never end, sizes beyond all reason.

Families check what they read; these are the values that would do harm before a family looks at them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tenon_core.quantization.config import EXPRESSION
from tenon_core.quantization.config import KEYS as QUANTIZATION_KEYS
from tenon_platforms.errors import ConfigError

from .regex_checks import why_heavy

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
    """Refuse expressions that may never end, and sizes that name more layers than any model has."""
    for holder in (config, config.get("text_config")):
        if not isinstance(holder, dict):
            continue
        for key in QUANTIZATION_KEYS:
            _check_expressions(holder.get(key), path)
        layers = holder.get("num_hidden_layers")
        if isinstance(layers, int) and layers > MAX_LAYERS:
            raise ConfigError(f"{path} has num_hidden_layers = {layers}: expected at most {MAX_LAYERS}")


def _check_expressions(described: Any, path: Path) -> None:
    """Targets of a quantization that are expressions ("re:...") are matched with every module's name."""
    if isinstance(described, (dict, list)):
        for value in described.values() if isinstance(described, dict) else described:
            _check_expressions(value, path)
    elif isinstance(described, str) and described.startswith(EXPRESSION) and (why := _why_bad(described)) is not None:
        raise ConfigError(f"{path}: the expression {described!r:.200} of the quantization {why}")


def _why_bad(described: str) -> str | None:
    expression = described.removeprefix(EXPRESSION)
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is none: {error}"
    return why_heavy(expression)
