"""The platform's options as one value. Their schema, defaults and help are in `platform.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tenon_platforms.errors import ConfigError

LIBRARIES = ("flashinfer", "flash-attention")
CHOICES = {"quantize": ("none", "fp8"), "kernels": ("auto", "torch"), "attention": ("auto", "triton", *LIBRARIES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CUDAOptions:
    """See `platform.toml`."""

    graphs: bool = True
    graph_rows: int = 0
    graph_tokens: int = 1024
    step_tokens: int = 0
    quantize: str = "none"
    kv_block_size: int = 0
    kernels: str = "auto"
    attention: str = "auto"
    kernel_cache: str = ""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> CUDAOptions:
        """From the operator's options; raises `ConfigError` for one that is unknown or out of range."""
        known = {item.name for item in fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(f"platform cuda has no option {name!r}: known are {', '.join(sorted(known))}")
        made = cls(**options)
        for name in ("graph_rows", "graph_tokens", "step_tokens", "kv_block_size"):
            if getattr(made, name) < 0:
                raise ConfigError(
                    f"--platform-opt cuda.{name}={getattr(made, name)}: must be 0 or more",
                    remedy="leave it out to let the platform decide",
                )
        for name, choices in CHOICES.items():
            if getattr(made, name) not in choices:
                raise ConfigError(
                    f"--platform-opt cuda.{name}={getattr(made, name)!r}: expected one of {', '.join(choices)}"
                )
        if made.attention in LIBRARIES and made.kernels == "torch":
            raise ConfigError(
                f"--platform-opt cuda.attention={made.attention} serves prompts inside tenon-triton's attention, which"
                " cuda.kernels=torch turns off",
                remedy="leave one of the two out",
            )
        return made
