"""What kernels need to know of a device, as numbers: the platform that uses this library fills it in."""

from __future__ import annotations

from dataclasses import dataclass

CACHE_LINE = 128  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """compute_units: multiprocessors, compute units or Xe cores. shared_bytes: fast memory one program may use.

    warp_size: lanes of a warp, wavefront or sub-group. fp8: whether e4m3 loads and conversions compile for it.
    async_copies: whether loads can be in flight without registers, so that deep pipelines pay.
    """

    compute_units: int
    shared_bytes: int
    warp_size: int = 32
    fp8: bool = True
    async_copies: bool = True
