"""Level 6, engine: whole tiny models equal Transformers, whatever the engine does on the way; and claims, both ways."""

from __future__ import annotations

from .l6 import claims, equality, features

CHECKS = (*equality.CHECKS, *features.CHECKS, *claims.CHECKS)
