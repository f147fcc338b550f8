"""Paged grouped-query attention as one family of kernels, behind the contract's `AttentionBackend`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import TritonAttention
    from .configs import AttentionConfigs, DecodeConfig, TileConfig
    from .offer import FEATURES, paged_attention

__all__ = ["FEATURES", "AttentionConfigs", "DecodeConfig", "TileConfig", "TritonAttention", "paged_attention"]
_MODULES = {
    "FEATURES": "offer",
    "AttentionConfigs": "configs",
    "DecodeConfig": "configs",
    "TileConfig": "configs",
    "TritonAttention": "backend",
    "paged_attention": "offer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
