"""`quant_method: fp8`, of DeepSeek, Qwen, Mistral and AutoFP8: one scale a tensor, or one a block of 128 x 128.

    {"quant_method": "fp8", "activation_scheme": "dynamic" | "static", "weight_block_size": [128, 128] | absent}

What `modules_to_not_convert` and `ignored_layers` list is stored plainly, which is how it is known. Source: the
documentation of Transformers' FineGrainedFP8Config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenon_platforms.errors import ConfigError

from .float8 import float8_module
from .module import ModuleTensors, QuantizedModule, unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class FP8:
    """A `Method`. block: rows and columns that share a scale, or None."""

    block: tuple[int, int] | None
    static: bool

    def module(self, tensors: ModuleTensors) -> QuantizedModule | None:
        """The FP8 weight of a module."""
        return float8_module(tensors, block=self.block, static=self.static)


def read(config: Mapping[str, Any]) -> FP8:
    """The method that a configuration describes; raises `ConfigError`."""
    if config.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise unsupported(f"FP8 of the format {config['fmt']!r:.80}", "e4m3")
    activations = config.get("activation_scheme", "dynamic")
    if activations not in ("dynamic", "static"):
        raise unsupported(f"the activation_scheme {activations!r:.80}", "dynamic, static")
    block = config.get("weight_block_size")
    if block is None:
        return FP8(block=None, static=activations == "static")
    if activations == "static":
        raise unsupported("static activations with a weight_block_size", "dynamic ones")
    return FP8(block=block_size(block), static=False)


def block_size(block: Any) -> tuple[int, int]:
    """[rows, columns] that share a scale; raises `ConfigError` for anything else."""
    if not isinstance(block, list) or len(block) != 2 or not all(type(one) is int and one > 0 for one in block):
        raise ConfigError(f"quantization_config has the block size {block!r:.80}: expected [rows, columns]")
    return block[0], block[1]
