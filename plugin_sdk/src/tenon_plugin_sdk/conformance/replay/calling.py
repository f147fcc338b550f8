"""Calling a kernel on recorded rows: as they lay, and strided, with the kit's guards, flags and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel

from ..cases.draws import RowsDraw
from ..levels.l2.running import Call, check_rows
from ..subject import Subject
from ..truth.rounding import Bounded


def call_rows(
    subject: Subject,
    kernel: Kernel,
    rows: Mapping[str, Tensor],
    call: Call,
    want: Sequence[tuple[str, Bounded, DType]],
    *,
    certain: Tensor | None = None,
) -> None:
    """rows: host inputs whose first axis is the tokens. The rest as in `check_rows`."""
    tokens = len(next(iter(rows.values())))
    for layout in ("contiguous", "strided"):
        draw = RowsDraw(tokens=tokens, fill="recorded", layout=layout, seed=tokens)
        check_rows(subject, kernel, draw, rows, call, want, certain=certain)
