"""The conformance kit: a platform proves, level by level, that it keeps the contract.

    pytest --pyargs tenon_plugin_sdk.conformance --platform NAME

or, in a plugin's own tests, a subclass of `ConformanceSuite` that names its platform. Importing this imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .suite import ConformanceSuite

__all__ = ["ConformanceSuite"]

_HOMES = {"ConformanceSuite": "suite"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
