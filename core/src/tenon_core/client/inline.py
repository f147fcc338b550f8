"""An engine in this process behind the client's interface. Torch is imported when one is started, not before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenon_core.config import EngineConfig
from tenon_core.engine.messages import EngineStats, GenerateRequest, StepUpdate
from tenon_core.sampling.validate import ModelFacts

if TYPE_CHECKING:
    from tenon_core.engine.engine import Engine


@dataclass(slots=True, kw_only=True)
class InlineLink:
    """A `SteppedLink` around an engine. Not thread-safe: one thread uses it."""

    engine: Engine

    @classmethod
    def start(cls, config: EngineConfig, *, on_phase: Callable[[str, float], None] | None = None) -> InlineLink:
        """Start an engine here. Raises `TenonError` with a remedy."""
        from tenon_core.engine.start import start_engine

        return cls(engine=start_engine(config, on_phase=on_phase))

    @property
    def facts(self) -> ModelFacts:
        """The model's facts."""
        return self.engine.facts

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises `RequestError` or `CapacityError`."""
        self.engine.submit(request)

    def abort(self, *, ids: Sequence[int] = (), keys: Sequence[int] = ()) -> None:
        """End requests, or single samples."""
        self.engine.abort(ids=ids, keys=keys)

    def step(self) -> StepUpdate | None:
        """One iteration of the loop."""
        return self.engine.step()

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.engine.has_work()

    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self.engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes."""
        self.engine.reset_prefix_cache()

    def shutdown(self) -> None:
        """Give the device back."""
        self.engine.shutdown()
