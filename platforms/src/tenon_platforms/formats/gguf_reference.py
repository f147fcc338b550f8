"""What GGML's block formats mean, in plain torch: the reference every kernel is held to.

Layouts follow ggml's `block_*` structs, little-endian. `d` is a float16 scale; nibbles hold element i low and element
i + half high. Values are exact in float32 but for the last product, as ggml's own dequantizers compute them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .gguf_types import BY_NAME, SUPPORTED

CHUNK_ELEMENTS = 2**18  # expanded at a time, so that temporaries stay in the cache


def dequantize(blocks: Tensor, type_name: str, dtype: torch.dtype) -> Tensor:
    """Elements of quantized rows. blocks: uint8 [..., bytes of a row]; returns [..., elements of a row] in `dtype`.

    Computed in float64 where `dtype` is float64, else in float32. Raises ValueError for an unknown type or a row that
    is no whole number of blocks.
    """
    if type_name not in BY_NAME:
        raise ValueError(f"GGUF type {type_name!r} is not supported: supported are {', '.join(SUPPORTED)}")
    kind = BY_NAME[type_name]
    if blocks.shape[-1] % kind.bytes:
        raise ValueError(f"a row of {blocks.shape[-1]} bytes holds no whole number of {type_name} blocks")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    lead = blocks.shape[:-1]
    each = blocks.contiguous().view(-1, kind.bytes)  # [blocks, bytes]
    values = torch.empty(len(each), kind.elements, dtype=dtype, device=blocks.device)
    step = max(CHUNK_ELEMENTS // kind.elements, 1)
    for part, target in zip(each.split(step), values.split(step), strict=True):
        target.copy_(_DECODERS[type_name](part, wide))
    return values.view(*lead, blocks.shape[-1] // kind.bytes * kind.elements)


def quantize_q8_0(values: Tensor) -> Tensor:
    """uint8 [..., bytes] of float32 [..., elements]: d = max|x| / 127, q = x / d rounded, halves away from zero.

    Byte for byte what ggml's reference writes, as are the two below.
    """
    groups = values.float().reshape(-1, 32)
    scale = groups.abs().amax(dim=1, keepdim=True) / 127
    scaled = groups * _inverse(scale)
    whole = scaled.abs().floor()
    rounded = scaled.sign() * (whole + (2 * (scaled.abs() - whole)).floor())
    packed = torch.cat((_bytes_of(scale.half()), rounded.to(torch.int8).view(torch.uint8)), dim=1)
    return packed.reshape(*values.shape[:-1], -1)


def quantize_q4_1(values: Tensor) -> Tensor:
    """uint8 [..., bytes] of float32 [..., elements]: m = min, d = (max - min) / 15, q = trunc((x - m) / d + 0.5)."""
    groups = values.float().reshape(-1, 32)
    low = groups.amin(dim=1, keepdim=True)
    scale = (groups.amax(dim=1, keepdim=True) - low) / 15
    quants = ((groups - low) * _inverse(scale) + 0.5).trunc().clamp(0, 15).to(torch.uint8)
    packed = torch.cat((_bytes_of(scale.half()), _bytes_of(low.half()), _pack_nibbles(quants)), dim=1)
    return packed.reshape(*values.shape[:-1], -1)


def quantize_q4_0(values: Tensor) -> Tensor:
    """uint8 [..., bytes] of float32 [..., elements]: d = extreme / -8, q = trunc(x / d + 8.5)."""
    groups = values.float().reshape(-1, 32)
    place = groups.abs().argmax(dim=1, keepdim=True)  # the first of equals
    scale = groups.gather(1, place) / -8
    quants = (groups * _inverse(scale) + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    packed = torch.cat((_bytes_of(scale.half()), _pack_nibbles(quants)), dim=1)
    return packed.reshape(*values.shape[:-1], -1)


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, 0 for a block of zeros; ggml multiplies by it, which rounds otherwise than dividing."""
    return torch.where(scale == 0, 0.0, 1 / scale)


def _bytes_of(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


def _pack_nibbles(quants: Tensor) -> Tensor:
    low, high = quants.chunk(2, dim=1)
    return low | (high << 4)


def _half(data: Tensor, wide: torch.dtype) -> Tensor:
    """float16 values [blocks, n] from bytes [blocks, 2 n]."""
    return data.contiguous().view(torch.float16).to(wide)


def _nibbles(data: Tensor) -> Tensor:
    """All low nibbles, then all high ones: [blocks, 2 n] of [blocks, n]."""
    return torch.cat((data & 15, data >> 4), dim=1)


def _q4_0(data: Tensor, wide: torch.dtype) -> Tensor:
    return _half(data[:, :2], wide) * (_nibbles(data[:, 2:]).to(wide) - 8)


def _q4_1(data: Tensor, wide: torch.dtype) -> Tensor:
    return _half(data[:, :2], wide) * _nibbles(data[:, 4:]).to(wide) + _half(data[:, 2:4], wide)


def _fifth_bits(data: Tensor) -> Tensor:
    """Bits 0..31 of four bytes a block as [blocks, 32], already worth 16."""
    shifts = torch.arange(8, dtype=torch.uint8, device=data.device)
    return (((data[:, :, None] >> shifts) & 1) << 4).flatten(1)


def _q5_0(data: Tensor, wide: torch.dtype) -> Tensor:
    quants = _nibbles(data[:, 6:]) | _fifth_bits(data[:, 2:6])
    return _half(data[:, :2], wide) * (quants.to(wide) - 16)


def _q5_1(data: Tensor, wide: torch.dtype) -> Tensor:
    quants = _nibbles(data[:, 8:]) | _fifth_bits(data[:, 4:8])
    return _half(data[:, :2], wide) * quants.to(wide) + _half(data[:, 2:4], wide)


def _q8_0(data: Tensor, wide: torch.dtype) -> Tensor:
    return _half(data[:, :2], wide) * data[:, 2:].contiguous().view(torch.int8).to(wide)


def _k_scales(data: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and eight 6-bit minimums a block from 12 bytes: uint8 [blocks, 8] each."""
    first, second, third = data.split(4, dim=1)
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    minimums = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales, minimums


def _k_affine(data: Tensor, quants: Tensor, wide: torch.dtype) -> Tensor:
    """d * scale * q - dmin * minimum over eight groups of 32."""
    scales, minimums = _k_scales(data[:, 4:16])
    scale = _half(data[:, :2], wide) * scales.to(wide)  # [blocks, 8]
    minimum = _half(data[:, 2:4], wide) * minimums.to(wide)
    return (scale[:, :, None] * quants.view(-1, 8, 32).to(wide) - minimum[:, :, None]).flatten(1)


def _q4_k(data: Tensor, wide: torch.dtype) -> Tensor:
    packed = data[:, 16:].view(-1, 4, 1, 32)  # each 32 bytes: group 2 i low, group 2 i + 1 high
    quants = torch.cat((packed & 15, packed >> 4), dim=2)
    return _k_affine(data, quants, wide)


def _q5_k(data: Tensor, wide: torch.dtype) -> Tensor:
    packed = data[:, 48:].view(-1, 4, 1, 32)
    quants = torch.cat((packed & 15, packed >> 4), dim=2).view(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8, device=data.device)[:, None]
    high = ((data[:, None, 16:48] >> shifts) & 1) << 4  # bit g of byte i: element i of group g
    return _k_affine(data, quants | high, wide)


def _q6_k(data: Tensor, wide: torch.dtype) -> Tensor:
    low = data[:, :128].view(-1, 2, 1, 64)
    quants = torch.cat((low & 15, low >> 4), dim=2).view(-1, 2, 4, 32)  # halves of 128: four runs of 32
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=data.device)[:, None]  # made there: captures may hold it
    high = (data[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3
    signed = (quants | (high << 4)).to(wide) - 32
    scales = data[:, 192:208].contiguous().view(torch.int8).to(wide)  # one a run of 16
    scale = _half(data[:, 208:210], wide) * scales
    return (signed.reshape(-1, 16, 16) * scale[:, :, None]).flatten(1)


def _plain(dtype: torch.dtype) -> Callable[[Tensor, torch.dtype], Tensor]:
    return lambda data, wide: data.contiguous().view(dtype).to(wide)


_DECODERS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "F32": _plain(torch.float32),
    "F16": _plain(torch.float16),
    "BF16": _plain(torch.bfloat16),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
