"""Codes of 4 and 8 bits from 32-bit words to the contract's bytes: column 2 i low and 2 i + 1 high in byte i.

Words are little-endian, as safetensors stores them, so a word's bytes are its codes from the lowest up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def codes_of_words(words: Tensor, bits: int) -> Tensor:
    """uint8 [..., n * 32 / bits] of int32 [..., n], the lowest bits first."""
    data = words.contiguous().view(torch.uint8)
    return data if bits == 8 else torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)


def bytes_of_codes(codes: Tensor, bits: int) -> Tensor:
    """The canonical weight of uint8 codes [out, in]: themselves, or two to a byte."""
    return codes.contiguous() if bits == 8 else (codes[..., 0::2] | (codes[..., 1::2] << 4)).contiguous()


def words_as_bytes(words: Tensor) -> Tensor:
    """The canonical weight of words packed along `in`, int32 [out, in * bits / 32]: the same bytes."""
    return words.contiguous().view(torch.uint8)
