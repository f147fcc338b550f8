"""What a rank brings to a collective: drawn from the order's seed and the rank, the same in parent and child."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INTEGERS = (torch.int32, torch.uint8)


def drawn(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A host tensor [shape] of standard normals, or of small whole numbers."""
    random = torch.Generator().manual_seed(seed * 1000 + rank)
    if dtype in INTEGERS:
        return torch.randint(0, 50, shape, generator=random).to(dtype)
    return torch.randn(math.prod(shape), generator=random).view(shape).to(dtype)


def counts(seed: int, size: int, *, empty: bool = False) -> list[list[int]]:
    """Uneven row counts of an all-to-all: counts[i][j] rows go from i to j; some are 0, all are where `empty`."""
    random = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 4, (size, size), generator=random)
    table[seed % size] = 0  # one rank sends nothing
    return [[0 if empty else int(one) for one in row] for row in table]
