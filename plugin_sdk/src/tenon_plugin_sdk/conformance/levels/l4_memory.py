"""Level 4, memory: an engine that runs for long holds what it held, whatever ends its requests, and makes room."""

from __future__ import annotations

from .l4 import blocks, shortage, soaks

CHECKS = (*shortage.CHECKS, *blocks.CHECKS, *soaks.CHECKS)
