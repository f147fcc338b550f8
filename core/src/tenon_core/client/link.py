"""`EngineLink`: the one interface to an engine, in this process or in another one.

Requests go in through `submit` and `abort`; what comes out are `StepUpdate`s. The inline link is stepped by whoever
waits; the other link hands updates over as they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tenon_core.engine.messages import EngineStats, GenerateRequest, StepUpdate
from tenon_core.sampling.validate import ModelFacts
from tenon_platforms.errors import CapacityError, ConfigError, DeviceError, PluginError, RequestError, TenonError
from tenon_platforms.pools import Pool

KINDS: dict[str, type[TenonError]] = {
    kind.__name__: kind for kind in (ConfigError, PluginError, CapacityError, DeviceError, RequestError)
}


def error_of(kind: str, message: str, *, remedy: str | None = None) -> TenonError:
    """An error that another process told."""
    return KINDS.get(kind, DeviceError)(message, remedy=remedy)


class EngineLostError(DeviceError):
    """The engine went away with requests in it; they may be sent again."""


class EngineLink(Protocol):
    """What a front end needs of an engine."""

    @property
    def facts(self) -> ModelFacts:
        """The model's facts; there once the engine is ready."""
        ...

    def submit(self, request: GenerateRequest) -> None:
        """Hand a request over. May raise `RequestError` or `CapacityError`; a remote engine answers those later."""
        ...

    def abort(self, *, ids: Sequence[int] = (), keys: Sequence[int] = ()) -> None:
        """End requests, or single samples."""
        ...


class SteppedLink(EngineLink, Protocol):
    """An engine in this process, which moves when it is stepped."""

    def loop(self) -> AbstractContextManager[Any]:
        """Entered around many steps by the thread that calls them; steps work without it, and cost more."""
        ...

    def step(self) -> StepUpdate | None:
        """One iteration of the engine's loop."""
        ...

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def stats(self) -> EngineStats:
        """The engine's counters."""
        ...

    def sleep(self, pools: Sequence[Pool]) -> int:
        """Give pools of the device back; bytes. Raises `ConfigError`, `CapacityError`."""
        ...

    def wake(self, pools: Sequence[Pool]) -> None:
        """Bring pools back. Raises `ConfigError`, `CapacityError`."""
        ...

    @property
    def asleep(self) -> tuple[Pool, ...]:
        """Pools that sleep."""
        ...

    def shutdown(self) -> None:
        """End the engine."""
        ...
