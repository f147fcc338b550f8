"""Kernels in Gluon, an experiment of Triton's: a module is imported with its first use, and a Triton without the
language does without its kernels, and says so once.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from types import ModuleType

logger = logging.getLogger(__name__)


@cache
def kernels_of(module: str) -> ModuleType | None:
    """`tenon_cuda.ops.<module>`, or None where this Triton cannot express its kernels."""
    try:
        return importlib.import_module(f"tenon_cuda.ops.{module}")
    except (ImportError, AttributeError, TypeError) as error:
        logger.info("plain kernels are used, not those of %s: this Triton has no warp groups (%s)", module, error)
        return None
