"""Every kernel the CUDA platform offers, by priority: what the operator asked for, tenon-triton's, torch's own.

tenon-triton registers its offers itself, at priority 10 unless they say otherwise; here they are only let in. What
nobody offers runs on the contract's reference kernels, and start-up says so.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tenon_platforms.errors import PluginError
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.table import OpTable

from ..options import CUDAOptions
from . import fp8, linear

if TYPE_CHECKING:
    from tenon_platforms.device import Device

    from ..capabilities import Arch

LOG = logging.getLogger(__name__)
ASKED_FOR, TRITON, TORCH = 20, 10, 0  # priorities


def register(table: OpTable, device: Device, arch: Arch, settings: CUDAOptions) -> None:
    """Offer the kernels that `settings` let in."""
    table.offer(MergedLinearSpec, "cublas", linear.cublas, priority=TORCH)
    if settings.quantize == "fp8":
        table.offer(MergedLinearSpec, "w8a8", fp8.w8a8, priority=ASKED_FOR)
    if settings.kernels == "auto":
        register_triton(table, device)


def register_triton(table: OpTable, device: Device) -> None:
    """tenon-triton's offers. Raises `PluginError` where the package is there and does not load."""
    if find_spec("tenon_triton") is None:
        LOG.warning("tenon-triton is not installed: most ops run on slow reference kernels (pip install tenon-triton)")
        return
    try:
        from tenon_triton.ops.offers import register as register_offers
    except ImportError as error:
        raise PluginError(
            f"tenon-triton does not load: {error}",
            remedy="reinstall it with a triton that fits torch, or pass --platform-opt cuda.kernels=torch",
        ) from error
    register_offers(table, device)
