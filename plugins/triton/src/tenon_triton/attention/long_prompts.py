"""What a platform may bring for rows of many tokens: a kernel of its own on this family's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.ops.attention import AttentionSpec

    from .launch import Context


class LongPrompts(Protocol):
    """Serves what it takes; the rest goes through `prefill`. A captured step may hold its launches."""

    def takes(self, spec: AttentionSpec, block_size: int) -> bool:
        """Whether it computes this with blocks of so many tokens."""

    def launch(
        self,
        output: Tensor,
        query: Tensor,
        cache: Tensor,
        context: Context,
        num_rows: int,
        first_row: int,
        num_tokens: int,
        spec: AttentionSpec,
    ) -> None:
        """Rows [first_row, first_row + num_rows), which hold at most `num_tokens` tokens together, into `output`.

        output, query: [tokens, heads, head_dim]; cache: as `kv_cache` lays it out.
        """
