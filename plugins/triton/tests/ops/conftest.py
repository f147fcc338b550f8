"""Triton's interpreter for the tests of ops. It is decided when a kernel is defined, so the switch comes first."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
