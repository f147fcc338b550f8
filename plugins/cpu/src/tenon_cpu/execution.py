"""The execution socket of the CPU platform: decode steps on tapes, prefills of any shape, eagerly.

A decode step is padded to a row count that a tape exists for; the counts are close, because products cost what they
compute here and a tape costs no more than the step it records. A step's prefill tokens are bounded lower than the
contract's default: products no longer gain from more rows, and every running request waits for a step to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenon_platforms.execution import EagerExecutable, EngineLimits, Executable, Execution
from tenon_platforms.shapes import DynamicShapes, LatticeShapes, ScheduleLimits, ShapeKey, ShapePolicy

if TYPE_CHECKING:
    from tenon_platforms.capabilities import Capabilities
    from tenon_platforms.device import Device
    from tenon_platforms.model import ModelSpec

STEP_TOKENS = 1024  # and one for every row, so that those that decode leave as many to prompts
EVERY, FINE, COARSE = 32, 4, 16  # row counts: each up to 32, every 4th up to 128, every 16th from there
FINE_UNTIL = 128


@dataclass(slots=True, kw_only=True)
class TapeShapes(LatticeShapes):
    """Decode steps padded to recorded row counts; those that turned out not to be recordable are not padded.

    No key is prepared ahead: recording is the first step itself.
    """

    refused: dict[ShapeKey, str] = field(default_factory=dict)

    def key(self, need: ShapeKey) -> ShapeKey:
        key = LatticeShapes.key(self, need)
        return need if key in self.refused else key

    def eager_keys(self) -> Iterator[ShapeKey]:
        return iter(())


class CPUExecution(Execution):
    """Tapes where the native library is there and the operator does not want everything eager."""

    def __init__(self, device: Device, *, tape: bool = True) -> None:
        super().__init__(device)
        self._records = tape
        self._refused: dict[ShapeKey, str] = {}

    def shape_policy(self, model: ModelSpec, limits: EngineLimits, capabilities: Capabilities) -> ShapePolicy:
        most = STEP_TOKENS + limits.max_rows
        if not limits.chunking:
            most = max(most, limits.max_model_len)
        schedule = ScheduleLimits(
            max_tokens=limits.max_tokens or most, max_rows=limits.max_rows, chunking=limits.chunking
        )
        self._records = self._records and not limits.enforce_eager
        if not self._records:
            return DynamicShapes(limits=schedule)
        return TapeShapes(limits=schedule, decode_rows=decode_rows(limits.max_rows), refused=self._refused)

    def executable(self, fn: Callable[[Any], Any], *, name: str) -> Executable:
        if not self._records:
            return EagerExecutable(fn)
        from .tape import TapeExecutable

        return TapeExecutable(fn, name=name, refused=self._refused)


def decode_rows(most: int) -> tuple[int, ...]:
    """The row counts of decode steps, ascending; the last is `most`."""
    counts = [*range(1, EVERY), *range(EVERY, FINE_UNTIL, FINE), *range(FINE_UNTIL, most, COARSE)]
    return (*(count for count in counts if count < most), most)
