"""The execution socket of the CPU platform: any shape, eagerly, in steps whose activations stay near the cores.

A step's prefill tokens are bounded lower than the contract's default: products no longer gain from more rows, and
every running request waits for a step to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenon_platforms.execution import EngineLimits, Execution
from tenon_platforms.shapes import DynamicShapes, ScheduleLimits, ShapePolicy

if TYPE_CHECKING:
    from tenon_platforms.capabilities import Capabilities
    from tenon_platforms.model import ModelSpec

STEP_TOKENS = 1024


class CPUExecution(Execution):
    """Eager and dynamic."""

    def shape_policy(self, model: ModelSpec, limits: EngineLimits, capabilities: Capabilities) -> ShapePolicy:
        most = max(STEP_TOKENS, limits.max_rows)
        if not limits.chunking:
            most = max(most, limits.max_model_len)
        return DynamicShapes(
            limits=ScheduleLimits(
                max_tokens=limits.max_tokens or most, max_rows=limits.max_rows, chunking=limits.chunking
            )
        )
