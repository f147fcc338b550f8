"""Which prompts go through a library, by GPU, heads and the step's shape: data, measured once for a device.

What no rule names stays with our kernels: nothing is tuned at run time, and a library that is installed but was not
measured faster is not used. `benchmarks/attention_libraries.py` prints what to write here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..options import LIBRARIES

if TYPE_CHECKING:
    from tenon_platforms.ops.attention import AttentionSpec

    from ..capabilities import Arch

FLASHINFER, FLASH_ATTENTION = LIBRARIES
ANY = (0, 1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """Of a step's rows that are no decodes: how many, all their tokens, and the longest context among them."""

    rows: int
    tokens: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """library serves plain attention of these heads, where the shape lies within all bounds, both ends included.

    arch: compute capability. group: query heads on one KV head. row_tokens: tokens of the step by its rows.
    """

    library: str
    arch: tuple[int, int]
    head_dim: int
    group: tuple[int, int] = ANY
    row_tokens: tuple[int, int] = ANY
    context: tuple[int, int] = ANY

    def covers(self, arch: Arch, spec: AttentionSpec) -> bool:
        """Whether it was measured for this GPU and these heads."""
        is_plain = not (spec.sliding_window or spec.soft_cap or spec.sinks or spec.tree_mask)
        return (
            is_plain
            and (arch.major, arch.minor) == self.arch
            and spec.head_dim == self.head_dim
            and _within(spec.num_heads // spec.num_kv_heads, self.group)
        )

    def holds(self, shape: PromptShape) -> bool:
        """Whether the shape lies within its bounds."""
        return _within(shape.tokens // shape.rows, self.row_tokens) and _within(shape.context, self.context)


# Measured on an H200, FlashInfer 0.6.13: faster than ours for 16 prompts of 128 only, by less than its plan costs.
RULES: tuple[Rule, ...] = ()


def _within(value: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= value <= bounds[1]
