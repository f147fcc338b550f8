"""The interpreter's conversions from and to float8_e4m3, made those of a device.

Triton's own interpreter rounds to one byte without the carry into the exponent, breaks ties upwards, and takes 0x7F,
which is NaN, for 480. Here both ways are torch's on the host, to nearest even. What lies beyond the type's end becomes
NaN, as on devices whose conversion does not saturate: kernels are to do so themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

NAME = "fp8e4nv"
TORCH = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    NAME: torch.float8_e4m3fn,
}  # fmt: skip


@contextmanager
def exact_float8() -> Iterator[None]:
    """While it lasts."""
    from triton.runtime import interpreter

    before = interpreter._convert_float
    interpreter._convert_float = _converting(before)
    try:
        yield
    finally:
        interpreter._convert_float = before


def _converting(others: Callable[..., Any]) -> Callable[..., Any]:
    def convert(given: Any, source: Any, target: Any, rounding: Any) -> Any:
        if NAME not in (source.name, target.name) or not given.size:
            return others(given, source, target, rounding)
        values = torch.frombuffer(bytearray(given.tobytes()), dtype=TORCH[source.name])
        if target.name == NAME:
            values = values.float()
            values = values.masked_fill(values.abs() > 464, torch.nan)
        made = values.to(TORCH[target.name]).view(torch.uint8).numpy()
        return made.view(getattr(np, f"uint{target.primitive_bitwidth}")).reshape(given.shape)

    return convert
