"""Q4_0 and Q4_1 blocks kept at 4 bits: torch's packed int4 product with groups of 32, bfloat16 activations.

    Q4_0  block of 32: float16 d, 16 bytes of nibbles;             w = d * (q - 8)
    Q4_1  block of 32: float16 d, float16 m, 16 bytes of nibbles;  w = d * q + m
    torch: w = (q - 8) * scale + zero, so scale = d and zero = 0 or m + 8 d, both rounded to bfloat16

Source: the GGML block formats (ggml-common.h). A quarter of float16's bytes and quicker for one row; slower from
about 8 rows on, and activations, scales and results have bfloat16's precision. Nibble i of a block is value i, the
high halves are values 16..31.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
TYPES = {"Q4_0": 18, "Q4_1": 20}  # bytes of a block
ROW_UNIT = 16  # the packed product wants rows in this unit


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """One packed [out, in] weight."""

    packed: Tensor
    scales_and_zeros: Tensor  # bfloat16 [in / 32, out, 2]
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.packed.nbytes + self.scales_and_zeros.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [tokens, out] of float [tokens, in]."""
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16().contiguous(), self.packed, GROUP, self.scales_and_zeros
        ).float()
        return product if self.bias is None else product.add_(self.bias)


def refuses(type_name: str, out_features: int, in_features: int) -> str | None:
    """Why a weight cannot stay at 4 bits, or None."""
    if type_name not in TYPES:
        return f"GGUF type {type_name} has no 4-bit product in torch"
    if in_features % GROUP or out_features % ROW_UNIT:
        return f"a [{out_features}, {in_features}] weight is no multiple of [{ROW_UNIT}, {GROUP}]"
    return None


def pack(parts: list[tuple[str, Tensor]], bias: Tensor | None) -> Int4Weight:
    """Parts (type, blocks uint8 [out, bytes of a row]) as one packed weight."""
    split = [split_blocks(blocks, type_name) for type_name, blocks in parts]
    values = torch.cat([part[0] for part in split])
    scales = torch.cat([part[1] for part in split]).bfloat16()  # [out, in / 32, 2]
    return Int4Weight(
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.int(), 1),
        scales.transpose(0, 1).contiguous(),
        None if bias is None else bias.float(),
    )


def split_blocks(blocks: Tensor, type_name: str) -> tuple[Tensor, Tensor]:
    """(values uint8 [out, in], float32 [out, in / 32, 2]: scale, zero) of blocks of either type."""
    size = TYPES[type_name]
    table = blocks.unflatten(-1, (-1, size))  # [out, in / 32, size]
    nibbles = table[..., size - 16 :]
    values = torch.cat((nibbles & 15, nibbles >> 4), dim=-1).flatten(1)
    head = table[..., : size - 16].contiguous().view(torch.float16).float()
    scale = head[..., 0]
    zero = head[..., 1] + 8 * scale if type_name == "Q4_1" else torch.zeros_like(scale)
    return values, torch.stack((scale, zero), dim=-1)
