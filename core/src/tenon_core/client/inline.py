"""An engine in this process behind the client's interface. Torch is imported when one is started, not before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tenon_core.config import EngineConfig
from tenon_core.engine.messages import EngineStats, GenerateRequest, StepUpdate
from tenon_core.sampling.validate import ModelFacts
from tenon_core.torch_import import import_torch
from tenon_platforms.errors import CapacityError, ConfigError, DeviceError
from tenon_platforms.pools import Pool

if TYPE_CHECKING:
    from tenon_core.engine.engine import Engine
    from tenon_platforms.device import Device

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class InlineLink:
    """A `SteppedLink` around an engine. Not thread-safe: one thread uses it.

    A step that does not come to its end, by a signal's exception or a device that is lost, leaves the engine *torn*: it
    takes nothing any more and says so.
    """

    engine: Engine
    is_torn: bool = False

    @classmethod
    def start(cls, config: EngineConfig, *, on_phase: Callable[[str, float], None] | None = None) -> InlineLink:
        """Start an engine here. Raises `TenonError` with a remedy."""
        import_torch()
        from tenon_core.engine.start import start_engine

        return cls(engine=start_engine(config, on_phase=on_phase))

    @property
    def facts(self) -> ModelFacts:
        """The model's facts."""
        return self.engine.facts

    @property
    def device(self) -> Device:
        """The device it runs on."""
        return self.engine.device

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises `RequestError`, `CapacityError`, or `DeviceError` where the engine is torn."""
        self._check_torn()
        self.engine.submit(request)

    def abort(self, *, ids: Sequence[int] = (), keys: Sequence[int] = ()) -> None:
        """End requests, or single samples."""
        if not self.is_torn:
            self.engine.abort(ids=ids, keys=keys)

    def loop(self) -> AbstractContextManager[Any]:
        """Entered around many steps."""
        return self.engine.loop()

    def step(self) -> StepUpdate | None:
        """One iteration of the loop."""
        try:
            return self.engine.step()
        except BaseException:
            self.is_torn = True
            raise

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.engine.has_work()

    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self.engine.stats()

    def check_integrity(self) -> None:
        """Raise `AssertionError` where rows or KV blocks do not add up; without work, all of them must be free."""
        self.engine.check_integrity()

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes."""
        self.engine.reset_prefix_cache()

    def sleep(self, pools: Sequence[Pool]) -> int:
        """Give pools of the device back; bytes."""
        return self._moved(lambda: self.engine.sleep(pools))

    def wake(self, pools: Sequence[Pool]) -> None:
        """Bring pools back."""
        self._moved(lambda: self.engine.wake(pools))

    @property
    def asleep(self) -> tuple[Pool, ...]:
        """Pools that sleep."""
        return self.engine.sleeping.asleep

    def _moved(self, move: Callable[[], T]) -> T:
        """What was refused has changed nothing; after anything else, nobody knows."""
        self._check_torn()
        try:
            return move()
        except (ConfigError, CapacityError):
            raise
        except BaseException:
            self.is_torn = True
            raise

    def _check_torn(self) -> None:
        if self.is_torn:
            raise DeviceError(
                "the engine was stopped in the midst of a step and cannot go on",
                remedy="shut it down and make a new one",
            )

    def shutdown(self) -> None:
        """Give the device back."""
        self.engine.shutdown()
