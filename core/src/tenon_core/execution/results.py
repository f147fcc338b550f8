"""What the host reads of a step: a handle while it is on its way, tokens and log-probabilities once it is done.

Results are copied to host buffers that rotate, so that no step in flight is copied to where another's still lie; on a
device in the host's memory whose steps are done when they are launched, they are read where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from tenon_platforms.batch import StepOutputs
from tenon_platforms.device import Device, Event

from .delta import Int32

HostCopies = tuple[list[Tensor], list[np.ndarray]]  # buffers on the host, and the same memory as arrays
KEPT_SIZES = 64  # sizes of results whose buffers are kept, in each turn


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLogprobs:
    """`Logprobs` on the host."""

    chosen: np.ndarray
    rank: np.ndarray
    top_ids: np.ndarray
    top: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """tokens: int32 [logits, up to 1 + draft length]; num_accepted: int32 [logits] of them, None: one each.

    Valid logits only, in the delta's order. pooled: float32 [logits, width] of a pooling head. Arrays are good until
    more steps are launched than may be in flight.
    """

    tokens: Int32
    num_accepted: Int32 | None = None
    logprobs: HostLogprobs | None = None
    pooled: np.ndarray | None = None


class LaunchedStep(Protocol):
    """A step on its way, wherever it runs. `result` waits and raises what the step raised."""

    def result(self) -> StepResult:
        """Tokens and log-probabilities on the host."""
        ...

    def discard(self) -> None:
        """Wait without wanting the result."""
        ...


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step that could not even be launched."""

    error: Exception

    def result(self) -> StepResult:
        raise self.error

    def discard(self) -> None:
        """Nothing is running."""


@dataclass(slots=True, kw_only=True)
class StepHandle:
    """A step queued on this process's device."""

    num_logits: int
    event: Event
    arrays: list[np.ndarray]  # on the host, once the event is done
    speculative: bool
    with_logprobs: bool
    pooled: bool = False

    def discard(self) -> None:
        """Wait without wanting the result; a failure is none of the caller's business any more."""
        try:
            self.event.wait()
        except Exception:  # noqa: BLE001 - the step is thrown away because an earlier one failed
            return

    def result(self) -> StepResult:
        """Tokens and log-probabilities on the host."""
        self.event.wait()
        count = self.num_logits
        arrays = [array[:count] for array in self.arrays]
        tokens, num_accepted = arrays.pop(0), arrays.pop(0) if self.speculative else None
        return StepResult(
            tokens=tokens,
            num_accepted=num_accepted,
            logprobs=HostLogprobs(chosen=arrays[0], rank=arrays[1], top_ids=arrays[2], top=arrays[3])
            if self.with_logprobs
            else None,
            pooled=arrays[0] if self.pooled else None,
        )


class ResultReader:
    """Gives each launched step its handle. depth: steps that may be in flight."""

    def __init__(self, device: Device, *, depth: int) -> None:
        self._device = device
        self._results: list[dict[Any, HostCopies]] = [{} for _ in range(depth + 2)]
        self._reads_in_place = device.shares_host_memory and not depth
        self._last_read: tuple[StepOutputs, list[np.ndarray]] | None = None  # a replay's outputs are the same objects
        self._turn = 0

    def handle(self, outputs: StepOutputs, num_logits: int) -> StepHandle:
        """Of a step just queued: its first `num_logits` results, on the host when its event is done."""
        return StepHandle(
            num_logits=num_logits,
            arrays=self._read(outputs) if self._reads_in_place else self._copied(_tensors_of(outputs)),
            event=self._device.event(),
            speculative=outputs.num_accepted is not None,
            with_logprobs=outputs.logprobs is not None,
            pooled=outputs.hidden is not None,
        )

    def _read(self, outputs: StepOutputs) -> list[np.ndarray]:
        """The outputs where they lie: the step has been done, and the next one is launched when these were taken in."""
        if self._last_read is None or self._last_read[0] is not outputs:
            self._last_read = (outputs, [tensor.numpy() for tensor in _tensors_of(outputs)])
        return self._last_read[1]

    def _copied(self, tensors: list[Tensor]) -> list[np.ndarray]:
        """Host buffers that no step in flight is copied to, and these tensors' copies to them queued."""
        self._turn = (self._turn + 1) % len(self._results)
        sizes = tuple(tensor.shape for tensor in tensors)
        kept = self._results[self._turn]
        copies = kept.get(sizes)
        if copies is None:
            if len(kept) > KEPT_SIZES:
                kept.clear()
            buffers = [self._device.host_buffer(tuple(t.shape), t.dtype) for t in tensors]
            copies = kept[sizes] = (buffers, [buffer.numpy() for buffer in buffers])
        for buffer, tensor in zip(copies[0], tensors, strict=True):
            self._device.copy(buffer, tensor)
        return copies[1]


def _tensors_of(outputs: StepOutputs) -> list[Tensor]:
    """What the host wants of a step, in the order in which `StepHandle.result` takes it."""
    tensors = [outputs.tokens]
    if outputs.num_accepted is not None:
        tensors.append(outputs.num_accepted)
    if outputs.logprobs is not None:
        found = outputs.logprobs
        tensors += [found.chosen, found.rank, found.top_ids, found.top]
    if outputs.hidden is not None:
        tensors.append(outputs.hidden)
    return tensors
