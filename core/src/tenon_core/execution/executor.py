"""The executor: where steps run. Inline here, in this process; processes and clusters come as further executors.

It owns the runner and says what the engine may count on: launching, compiles counted, shutting down.
"""

from __future__ import annotations

from typing import Protocol

from tenon_platforms.device import Device

from .delta import StepDelta
from .results import FailedStep, LaunchedStep
from .runner import GrammarMasks, Runner


class Executor(Protocol):
    """Runs step deltas."""

    @property
    def num_compiles(self) -> int:
        """Compilations so far."""
        ...

    def launch(self, delta: StepDelta, masks: GrammarMasks | None = None) -> LaunchedStep:
        """Queue one step. Never raises: a step that cannot be queued fails in its `result`.

        masks: asked once the forward pass is queued, for steps with rows that follow a grammar.
        """
        ...

    def shutdown(self) -> None:
        """Give everything back."""
        ...


class InlineExecutor:
    """One runner in this process."""

    def __init__(self, runner: Runner, device: Device) -> None:
        self.runner = runner
        self._device = device

    @property
    def num_compiles(self) -> int:
        return self.runner.num_compiles

    def launch(self, delta: StepDelta, masks: GrammarMasks | None = None) -> LaunchedStep:
        try:
            with self._device.inference_context():
                return self.runner.launch(delta, masks)
        except Exception as error:  # noqa: BLE001 - raised by `result`, where a step's failures are dealt with
            return FailedStep(error)

    def shutdown(self) -> None:
        self._device.synchronize()
        self.runner.release()
        self._device.close()
