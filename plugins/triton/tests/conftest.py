"""The kernels need triton, which not every machine has; the root conftest.py has turned on its interpreter."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["*"]
