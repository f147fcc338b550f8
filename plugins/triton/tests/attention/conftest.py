"""Shared pieces of the attention tests: Triton's interpreter, batches, caches with poison, the truth in float64.

Interpretation is decided when a kernel is defined, so the switch is set before anything of `tenon_triton` is imported.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
