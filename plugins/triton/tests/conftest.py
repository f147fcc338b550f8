"""Tests of the kernels need triton, which exists for some machines only; the root's conftest.py turns on its interpreter."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["*"]
