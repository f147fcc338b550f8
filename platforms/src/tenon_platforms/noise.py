"""The random numbers of sampling: Threefry-2x32-20, counter-based, 32-bit, add/rotate/xor only.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Random123); also JAX's default. It needs
no 64-bit integers and no multiply-high, so int32-only devices can run it.

    sequence key    = threefry(key=(seed low, seed high), counter=(sample index, purpose))
    noise of id v   = word v & 1 of threefry(key=sequence key, counter=(v >> 1, position))
    uniform         = ((bits >> 9) + 0.5) * 2^-23, in (0, 1);   Gumbel = -log(-log(uniform))

`position` is the absolute position of the token being chosen. Nothing depends on the batch. Torch-free (numpy);
`ops/sampling_reference.py` has the same in torch.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
UInt32 = npt.NDArray[np.uint32]

# (key, counter, output), from Random123's known-answer file for threefry2x32, 20 rounds.
GOLDEN: tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], ...] = (
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
)


class Purpose(IntEnum):
    """What a stream of noise is for; streams of different purposes are independent."""

    SAMPLE = 0
    DRAFT = 1
    ACCEPT = 2


def threefry(key0: UInt32, key1: UInt32, counter0: UInt32, counter1: UInt32) -> tuple[UInt32, UInt32]:
    """Threefry-2x32-20 on broadcastable uint32 arrays; returns the two output words."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(PARITY))
    x0, x1 = counter0 + key0, counter1 + key1
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def sequence_key(seed: int, sample_index: int, purpose: Purpose = Purpose.SAMPLE) -> tuple[int, int]:
    """The key of one sequence's noise, two uint32, from a seed (taken modulo 2^64) and its sample index."""
    seed %= 1 << 64
    words = np.array([[seed & 0xFFFFFFFF], [seed >> 32], [sample_index], [int(purpose)]], dtype=np.uint32)
    out0, out1 = threefry(words[0], words[1], words[2], words[3])
    return int(out0[0]), int(out1[0])


def token_bits(key: tuple[int, int], position: int, vocab_size: int) -> UInt32:
    """The 32 random bits of every token id at one position, uint32 [vocab_size]."""
    ids = np.arange((vocab_size + 1) // 2, dtype=np.uint32)
    key0, key1 = np.full_like(ids, key[0]), np.full_like(ids, key[1])
    pairs = np.stack(threefry(key0, key1, ids, np.full_like(ids, position)), axis=1)
    return pairs.reshape(-1)[:vocab_size]


def gumbel(bits: UInt32) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise of random bits, in float64."""
    uniform = ((bits >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise
