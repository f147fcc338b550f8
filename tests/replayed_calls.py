"""Recorded calls that stand in for graphs where there is no GPU: a replay runs what was recorded again.

It takes the inputs it was recorded with, whatever lies in them by then, and fills the outputs it had then.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from tenon_platforms.batch import Logprobs, StepOutputs
from tenon_platforms.shapes import ShapeKey
from tenon_sim.trees import tensors_of


class ReplayedCall:
    """Runs what was recorded again."""

    def __init__(self, fn: Callable[[Any], Any], inputs: Any, outputs: Any, replayed: list[ShapeKey]) -> None:
        self._fn, self._inputs, self._outputs, self._replayed = fn, inputs, outputs, replayed

    def replay(self) -> None:
        self._replayed.append(self._inputs.key)
        found = dict(tensors_of(self._fn(self._inputs)))
        for path, target in tensors_of(self._outputs):
            target.copy_(found[path])

    def reset(self) -> None:
        """Nothing is held."""


class CallRecorder:
    """As a graph recorder, it runs nothing: outputs are buffers of the right shapes."""

    def __init__(self) -> None:
        self.num_live = 0
        self.vocab_size = 0
        self.keys: list[ShapeKey] = []  # as they were recorded, and as they were replayed
        self.replayed: list[ShapeKey] = []

    def record(self, fn: Callable[[Any], Any], inputs: Any) -> tuple[ReplayedCall, Any]:
        self.num_live += 1
        self.keys.append(inputs.key)
        # a graph holds what it was given, whatever becomes of the call, and of plans that the next step updates
        inputs = replace(inputs, plans=[copy(plan) for plan in inputs.plans])
        outputs = self._outputs(inputs)
        return ReplayedCall(fn, inputs, outputs, self.replayed), outputs

    def _outputs(self, inputs: Any) -> Any:
        key = inputs.key
        rows, best = key.logits, key.mode.num_logprobs
        if key.mode.grammar and inputs.logits is None:  # the step's first half
            return inputs.inputs.token_ids.new_full((rows, self.vocab_size), float("nan"), dtype=torch.float32)
        logprobs = None
        if best >= 0:
            logprobs = Logprobs(
                chosen=torch.full((rows,), float("nan")),
                rank=torch.zeros(rows, dtype=torch.int32),
                top_ids=torch.zeros((rows, best), dtype=torch.int32),
                top=torch.full((rows, best), float("nan")),
            )
        return StepOutputs(tokens=torch.full((rows, 1), -1, dtype=torch.int32), logprobs=logprobs)

    def forget(self, graph: ReplayedCall) -> None:
        self.num_live -= 1
