"""Tenon's CUDA platform. Its manifest is `platform.toml`; importing this package imports neither torch nor kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .platform import CUDAPlatform

__all__ = ["CUDAPlatform"]


def __getattr__(name: str) -> Any:
    if name == "CUDAPlatform":
        from .platform import CUDAPlatform

        return CUDAPlatform
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
