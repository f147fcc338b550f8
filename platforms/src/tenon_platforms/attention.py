"""The attention socket: layout, plan and kernel, offered together for one kind of layer group.

A backend is offered through the op table for `AttentionSpec`, as an `AttentionKernel`. It owns the bytes of the KV
cache; core passes block numbers. `plan` runs once per step and group, `run` once per layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from .kernel import Kernel
from .kv_layout import KVLayout

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import AttentionBatch, GQAInputs


class GraphSupport(IntEnum):
    """Which batches may run inside a captured executable; a step's is the minimum over its kernels."""

    NEVER = 0
    SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


class AttentionBackend(ABC):
    """Paged attention of one layer group.

    layout: where K and V lie. graph_support: see `GraphSupport`. needs_exact_host_lengths: `batch.host.seq_lens` must
    be exact, which costs overlap under speculation; a plan that takes them as a bound only leaves it False. What a
    kernel states of itself (batch_invariant, deterministic) stands in its `KernelFlags`.
    """

    layout: KVLayout
    graph_support: GraphSupport = GraphSupport.NEVER
    needs_exact_host_lengths: bool = False

    @abstractmethod
    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Any]:
        """One KV cache a layer, `num_blocks` blocks of `block_size` tokens each; the null block is zero.

        The pool is planned from `layout.block_bytes`: the caches may take no more.
        """

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> Any:
        """Whatever `run` wants to know of a step, computed once for all layers of the group."""

    def update(self, plan: Any, batch: AttentionBatch) -> Any:
        """Bring a captured executable's plan up to this step's lengths before replay; default: plan anew."""
        return self.plan(batch)

    @abstractmethod
    def write_kv(self, key: Tensor, value: Tensor, cache: Any, slots: Tensor) -> None:
        """Store key and value, [tokens, kv heads, head_dim], at `slots` [tokens]: block * block_size + offset."""

    @abstractmethod
    def run(self, inputs: GQAInputs, plan: Any) -> Tensor:
        """[tokens, heads, head_dim], the attention output of every valid token; padding tokens hold anything finite."""

    @abstractmethod
    def copy_blocks(self, caches: list[Any], source: Tensor, target: Tensor) -> None:
        """Copy whole blocks, int32 [n] to int32 [n] (both contiguous), in every layer's cache (copy on write)."""

    @abstractmethod
    def export_blocks(self, cache: Any, blocks: Tensor) -> Tensor:
        """Blocks int32 [n] of one layer in canonical form, [n, 2, block_size, kv heads, head_dim].

        Of `layout.canonical_dtype`.
        """

    @abstractmethod
    def import_blocks(self, cache: Any, blocks: Tensor, canonical: Tensor) -> None:
        """The inverse of `export_blocks`; values are rounded as `layout.dtype` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel(Kernel):
    """What an offer for `AttentionSpec` answers: a kernel that carries its backend. `run` is the backend's."""

    backend: AttentionBackend


def attention_kernel(name: str, backend: AttentionBackend, **fields: Any) -> AttentionKernel:
    """An `AttentionKernel` around `backend`; `fields` are those of `Kernel`, such as flags."""
    return AttentionKernel(name=name, run=backend.run, backend=backend, **fields)
