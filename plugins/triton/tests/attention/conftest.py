"""Caches of float8_e4m3 hold here what they hold on a device: the interpreter's own rounding to one byte is mended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from exact_float8 import exact_float8


@pytest.fixture(autouse=True)
def _exact_float8() -> Iterator[None]:
    with exact_float8():
        yield
