"""The contract's noise inside kernels: Threefry-2x32-20 on uint32, and Gumbel noise of its bits.

Source: Salmon et al., SC 2011; `tenon_platforms.noise` is the definition, bit for bit. One call makes the noise of two
neighbouring ids.
"""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST_NOISE: tl.constexpr = tl.constexpr(16.7)  # of the largest uniform, 1 - 2^-24: 16.636


@triton.jit
def _round(x0, x1, ROTATION: tl.constexpr):
    x0 += x1
    x1 = ((x1 << ROTATION) | (x1 >> (32 - ROTATION))) ^ x0
    return x0, x1


@triton.jit
def threefry(key0, key1, counter0, counter1):
    """Two uint32 words of uint32 keys and counters, broadcast against each other."""
    key2 = key0 ^ key1 ^ 0x1BD11BDA
    x0, x1 = counter0 + key0, counter1 + key1
    x0, x1 = tl.broadcast(x0, x1)
    x0, x1 = _round(x0, x1, 13)
    x0, x1 = _round(x0, x1, 15)
    x0, x1 = _round(x0, x1, 26)
    x0, x1 = _round(x0, x1, 6)
    x0, x1 = x0 + key1, x1 + (key2 + 1)
    x0, x1 = _round(x0, x1, 17)
    x0, x1 = _round(x0, x1, 29)
    x0, x1 = _round(x0, x1, 16)
    x0, x1 = _round(x0, x1, 24)
    x0, x1 = x0 + key2, x1 + (key0 + 2)
    x0, x1 = _round(x0, x1, 13)
    x0, x1 = _round(x0, x1, 15)
    x0, x1 = _round(x0, x1, 26)
    x0, x1 = _round(x0, x1, 6)
    x0, x1 = x0 + key0, x1 + (key1 + 3)
    x0, x1 = _round(x0, x1, 17)
    x0, x1 = _round(x0, x1, 29)
    x0, x1 = _round(x0, x1, 16)
    x0, x1 = _round(x0, x1, 24)
    x0, x1 = x0 + key1, x1 + (key2 + 4)
    x0, x1 = _round(x0, x1, 13)
    x0, x1 = _round(x0, x1, 15)
    x0, x1 = _round(x0, x1, 26)
    x0, x1 = _round(x0, x1, 6)
    return x0 + key2, x1 + (key0 + 5)


@triton.jit
def gumbel(bits):
    """Standard Gumbel noise, float32, of uint32 bits."""
    uniform = ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23
    return -tl.log(-tl.log(uniform))
