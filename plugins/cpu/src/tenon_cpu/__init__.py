"""Tenon's CPU platform. Its manifest is `platform.toml`; importing this package imports neither torch nor kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .platform import CPUPlatform

__all__ = ["CPUPlatform"]


def __getattr__(name: str) -> Any:
    if name == "CPUPlatform":
        from .platform import CPUPlatform

        return CPUPlatform
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
