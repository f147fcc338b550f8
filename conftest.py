"""Of every test: kernels written in Triton run in its interpreter.

That is decided when triton is imported and holds for the process, so the switch comes before any test file, whichever
imports tenon_triton first. Tests that compile start a process of their own without it.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
