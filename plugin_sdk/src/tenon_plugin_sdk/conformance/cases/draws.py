"""What a rowwise op is tried with: how many rows, which values, how they lie. Edges always, the rest drawn.

Drawn with Hypothesis from a fixed seed: the same run everywhere, and a failure shrinks to the least rows that show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from ..profile import Profile

EDGE_TOKENS = (0, 1, 2, 3, 15, 16, 17, 31, 33, 64, 65)
WIDE_TOKENS = (127, 128, 129, 255, 257, 509, 1024)
FILLS = ("normal", "mixed", "large", "tiny", "zeros", "nan row")
LAYOUTS = ("contiguous", "strided", "shifted")


@dataclass(frozen=True, slots=True)
class RowsDraw:
    """One call: rows of values. fill "nan row": normal values, and one row of NaN and infinities."""

    tokens: int
    fill: str
    layout: str
    seed: int

    @property
    def poisoned_row(self) -> int | None:
        """The row that is not a number, or None."""
        return self.tokens // 2 if self.fill == "nan row" and self.tokens > 1 else None


def edge_draws(profile: Profile, fills: Sequence[str] = FILLS) -> list[RowsDraw]:
    """Every edge count and every fill and layout at least once."""
    tokens = EDGE_TOKENS + (WIDE_TOKENS if profile.wide else ())
    return [
        RowsDraw(count, fills[place % len(fills)], LAYOUTS[place % len(LAYOUTS)], profile.seed + place)
        for place, count in enumerate(tokens)
    ]


def row_draws(profile: Profile, fills: Sequence[str] = FILLS) -> st.SearchStrategy[RowsDraw]:
    """Any rows."""
    most = 300 if profile.wide else 70
    return st.builds(
        RowsDraw, st.integers(0, most), st.sampled_from(fills), st.sampled_from(LAYOUTS), st.integers(0, 2**31 - 1)
    )


def explore(profile: Profile, edges: Sequence[Any], drawn: st.SearchStrategy[Any], run: Callable[[Any], None]) -> None:
    """Run all edges, then drawn cases; a failing drawn case is shrunk before it is raised."""
    for one in edges:
        try:
            run(one)
        except Exception as error:
            _note(error, one)
            raise

    @seed(profile.seed)
    @settings(
        max_examples=profile.examples,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(drawn)
    def examples(one: Any) -> None:
        try:
            run(one)
        except Exception as error:
            _note(error, one)
            raise

    examples()


def _note(error: Exception, one: Any) -> None:
    """Say with which draw it failed (as Python 3.11's notes, which 3.10 lacks)."""
    if not getattr(error, "has_draw", False):
        error.args = (f"{error.args[0] if error.args else type(error).__name__} [with {one}]", *error.args[1:])
        error.has_draw = True  # type: ignore[attr-defined]


def values(shape: tuple[int, ...], draw: RowsDraw, dtype: torch.dtype, *, large: float = 1.0, salt: int = 0) -> Tensor:
    """Host values [rows, ...] of a draw in `dtype`. large: the greatest magnitude that the op's formula survives."""
    random = torch.Generator().manual_seed(draw.seed * 31 + salt)
    base = torch.randn(shape, generator=random, dtype=torch.float64)
    finfo = torch.finfo(dtype)
    if draw.fill == "mixed":
        base = base.sign() * torch.exp2(torch.rand(shape, generator=random, dtype=torch.float64) * 14 - 8)
    elif draw.fill == "large":
        base = base.clamp(-1, 1) * min(large, float(finfo.max))
    elif draw.fill == "tiny":
        base = base * float(finfo.tiny)
    elif draw.fill == "zeros":
        base = torch.zeros_like(base)
    made = base.clamp(-float(finfo.max), float(finfo.max)).to(dtype)
    row = draw.poisoned_row
    if row is not None and made.dim() and shape[0] == draw.tokens:
        made[row] = float("nan")
        made[row].view(-1)[::3] = float("inf")
    return made


def healthy_rows(draw: RowsDraw, dims: int) -> Tensor:
    """bool [rows, 1, ...]: those whose values are numbers."""
    mask = torch.ones(draw.tokens, dtype=torch.bool)
    if draw.poisoned_row is not None:
        mask[draw.poisoned_row] = False
    return mask.view(-1, *[1] * (dims - 1))
