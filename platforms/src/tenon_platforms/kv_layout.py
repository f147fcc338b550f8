"""How a layer group's KV cache lies in memory, and the canonical form every platform can export to and import from.

Core deals in block numbers; the bytes are the platform's. Two layouts interoperate through the canonical form of
their kind, so prefill on one vendor and decode on another needs no pairwise converters. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .dtypes import DType

CANONICAL_VERSION = 1


class LayoutKind(str, Enum):
    """What a block holds. Canonical forms, version 1, one block a leading index:

    PAGED: [2, block_size, kv_heads, head_dim], keys then values. LATENT: [block_size, latent_dim]. STATE: flat bytes
    of one snapshot of a recurrent state.
    """

    PAGED = "paged"
    LATENT = "latent"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """One layer group's layout.

    id: a KV-writing composite must name it. dims: axis names of one layer's tensor, outermost first, for people and
    fused kernels (a cache of several tensors may put "kv" first). kernel_block_size: the scheduler's block size is a
    multiple. preferred_block_size: used when the operator names none. padded_head_dim: what a head takes in memory.
    null_block: reserved, zero when made; padding tokens are written there and read there.
    index_dtype: of slots and block tables. scale_bytes_per_token: of quantized caches, kept beside the block.
    dtype: in which keys, after rotation, and values are kept; what is written or imported is rounded to nearest even.
    float8_e4m3 is unscaled and saturates: beyond +-448, infinities too, becomes +-448, NaN stays NaN
    (`torch_dtypes.rounded_to`). int8: a token's keys and its values of a head are codes of one float32 scale each
    (`ops/quantized_kv.py`).
    """

    kind: LayoutKind
    id: str
    dims: tuple[str, ...]
    dtype: DType
    num_kv_heads: int
    head_dim: int
    kernel_block_size: int
    preferred_block_size: int
    padded_head_dim: int
    alignment: int = 64
    index_dtype: DType = DType.INT32
    null_block: int = 0
    scale_bytes_per_token: int = 0

    @property
    def canonical_dtype(self) -> DType:
        """Of the canonical form: the cache's, or float32 where that is codes with scales."""
        return DType.FLOAT32 if self.dtype == DType.INT8 else self.dtype

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of one layer."""
        per_token = 2 * self.num_kv_heads * self.padded_head_dim * self.dtype.num_bytes + self.scale_bytes_per_token
        return -(-per_token * block_size // self.alignment) * self.alignment
