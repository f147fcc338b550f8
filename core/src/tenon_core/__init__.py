"""Tenon's engine. Importing this package imports neither torch nor a web framework: names are looked up when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.beams import BeamSearchParams
    from .client.inline import InlineLink
    from .client.outputs import CompletionOutput, RequestOutput
    from .config import EngineConfig
    from .engine.messages import EngineStats, FinishReason, GenerateRequest, StepUpdate
    from .llm import LLM
    from .sampling.params import SamplingParams
    from .sampling.pooling import PoolingParams

    __version__: str

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineConfig",
    "EngineStats",
    "FinishReason",
    "GenerateRequest",
    "InlineLink",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StepUpdate",
    "__version__",
]

_HOMES = {
    "LLM": "llm",
    "BeamSearchParams": "client.beams",
    "SamplingParams": "sampling.params",
    "PoolingParams": "sampling.pooling",
    "RequestOutput": "client.outputs",
    "CompletionOutput": "client.outputs",
    "EngineConfig": "config",
    "InlineLink": "client.inline",
    "EngineStats": "engine.messages",
    "FinishReason": "engine.messages",
    "GenerateRequest": "engine.messages",
    "StepUpdate": "engine.messages",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib_metadata import version

        return version("tenon-core")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
