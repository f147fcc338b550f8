"""Level 2: every op id, against float64 from the same quantized inputs."""

from __future__ import annotations

from .l2 import attention, claims, encoders, kv_rounding, products, rows, rowwise, sampling

CHECKS = (
    *rowwise.CHECKS,
    *encoders.CHECKS,
    *products.CHECKS,
    *attention.CHECKS,
    *kv_rounding.CHECKS,
    *rows.CHECKS,
    *sampling.CHECKS,
    *claims.CHECKS,
)
