"""What the layers of one step share and would otherwise each compute: slots split into places, angles of positions.

Kernels that take the same index tensor in every layer ask here. Entries live until the next step is planned, and hold
the tensor they belong to, so that an identity is never reused while it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class StepMemo:
    """One step's shared results. The attention planner forgets them: it runs before any layer."""

    _known: dict[tuple[str, int], tuple[Any, Any]] = field(default_factory=dict)

    def forget(self) -> None:
        """A new step begins; index tensors may hold other values from now on."""
        self._known.clear()

    def get(self, name: str, of: Any, make: Callable[[Any], Any]) -> Any:
        """`make(of)`, once a step for each `name` and tensor."""
        found = self._known.get((name, id(of)))
        if found is None:
            found = self._known[(name, id(of))] = (of, make(of))
        return found[1]
