"""What a platform may bring for rows of many tokens: a kernel of its own on this family's cache.

once         warm(spec, block_size)            what is built or loaded, before the engine is ready
once a step  plan(batch, first_row, spec)      of rows [first_row, ...), the step's prompts; or None
once a layer run(output, query, cache, context)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from tenon_platforms.attention import GraphSupport
    from tenon_platforms.batch import AttentionBatch
    from tenon_platforms.ops.attention import AttentionSpec

    from .launch import Context


class PromptsPlan(Protocol):
    """One step's prompts."""

    def run(self, output: Tensor, query: Tensor, cache: Tensor, context: Context) -> None:
        """Their rows of `output`. output, query: [tokens, heads, head_dim] of the whole step; cache: as `kv_cache`.

        Rows of which the context says `decodes_apart`, and that are decodes, are left out.
        """


class LongPrompts(Protocol):
    """Serves what it takes; the rest goes through `prefill`.

    graph_support, needs_exact_host_lengths: as `AttentionBackend`'s. workspace_bytes: held beside the cache.
    """

    @property
    def graph_support(self) -> GraphSupport: ...

    @property
    def needs_exact_host_lengths(self) -> bool: ...

    @property
    def workspace_bytes(self) -> int: ...

    def takes(self, spec: AttentionSpec, block_size: int) -> bool:
        """Whether it computes this with blocks of so many tokens."""

    def warm(self, spec: AttentionSpec, block_size: int) -> None:
        """Build or load what serving would otherwise wait for. Called where it takes this, before the first plan."""

    def plan(self, batch: AttentionBatch, first_row: int, spec: AttentionSpec) -> PromptsPlan | None:
        """Of all rows from `first_row` on, or None: the plain kernel computes this step.

        A plan of a static key is captured: it may use nothing of the batch but the key and tensors of the context.
        """
