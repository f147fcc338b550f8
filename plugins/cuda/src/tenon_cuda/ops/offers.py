"""Every kernel the CUDA platform offers, by priority: tenon-triton's, then torch's own.

What nobody offers runs on the contract's reference kernels, and start-up says so.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tenon_platforms.errors import PluginError
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.table import OpTable

from ..device import CUDADevice
from ..options import CUDAOptions
from . import fp8, linear
from .prompt_choice import PromptLibraries, require
from .warpgroup_gated import WarpgroupGated
from .warpgroups import ARCH, WarpgroupPrompts

if TYPE_CHECKING:
    from tenon_platforms.device import Device

    from ..capabilities import Arch

LOG = logging.getLogger(__name__)
LIBRARY = "tenon_triton"


def register(table: OpTable, device: Device, arch: Arch, settings: CUDAOptions) -> None:
    """Offer the kernels that `settings` let in.

    Raises `PluginError` where tenon-triton is there and does not load, `ConfigError` where `settings` name a library
    that is not there, or a folder for kernels that cannot be one.
    """
    if arch.has_fp8:
        online = settings.quantize == "fp8"
        table.offer(MergedLinearSpec, "w8a8", lambda spec: fp8.w8a8(spec, online=online), priority=1)
    table.offer(MergedLinearSpec, "cublas", linear.cublas)
    if settings.kernels == "torch":
        _say_ignored(settings)
        return
    require(settings.attention, arch)
    if find_spec(LIBRARY) is None:
        LOG.warning("tenon-triton is not installed: most ops run on slow reference kernels (pip install tenon-triton)")
        _say_ignored(settings)
        return
    try:
        from tenon_triton import kernel_cache

        from . import triton_offers
        from .persistent_mlp import PersistentMLP
    except ImportError as error:
        raise PluginError(
            f"tenon-triton does not load: {error}",
            remedy="reinstall tenon-triton and a triton that fits torch, or pass --platform-opt cuda.kernels=torch",
        ) from error
    if settings.kernel_cache:
        kernel_cache.keep_in(settings.kernel_cache)
    facts = triton_offers.device_facts(device, arch)
    libraries = PromptLibraries(
        attention=settings.attention, device=device, arch=arch, compute_units=facts.compute_units
    )
    triton_offers.register(
        table,
        device,
        facts,
        settings,
        long_prompts=WarpgroupPrompts(arch),
        libraries=libraries,
        gated_rows=WarpgroupGated(arch=arch, units=facts.compute_units),
        gated_tokens=PersistentMLP(
            arch=arch,
            units=facts.compute_units,
            shared_bytes=facts.shared_bytes,
            counter=device.meeting() if arch == ARCH and isinstance(device, CUDADevice) else None,
        ),
    )


def _say_ignored(settings: CUDAOptions) -> None:
    if settings.kernel_cache:
        LOG.warning("cuda.kernel_cache=%s is ignored: torch's kernels are not compiled", settings.kernel_cache)
