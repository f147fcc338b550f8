"""Of every test: kernels written in Triton run in its interpreter.

That is decided when triton is imported and holds for the process, so the switch comes before any test file, whichever
imports tenon_triton first. Tests that compile start a process of their own without it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """A command run in this process sets the root logger's level: the next test finds it as it was."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)
