"""Level 2: every op id, against float64 from the same quantized inputs."""

from __future__ import annotations

from .l2 import attention, products, rowwise

CHECKS = (*rowwise.CHECKS, *products.CHECKS, *attention.CHECKS)
