"""Prompts through FlashAttention, in whichever edition is installed, on views of the cache as it lies.

    cache [blocks, 2, kv heads, block_size, head_dim]  ->  keys, values [blocks, block_size, kv heads, head_dim]

Lengths and tables stay on the device. An edition gives a tensor of its own, as large as the queries (64 MiB for 8,192
tokens of 32 heads of 128), which is copied into the step's output.
Signatures: flash_attn 2.8 (`flash_attn_varlen_func`), hopper/flash_attn_interface.py (`flash_attn_with_kvcache`) and
flash_attn/cute/interface.py (`flash_attn_varlen_func`) of the library's repository, August 2026.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tenon_platforms.attention import GraphSupport
from tenon_platforms.errors import PluginError
from tenon_platforms.kernel import No
from tenon_platforms.torch_dtypes import to_torch

from .installed import Library
from .prompt_rows import PromptRows, refusal

if TYPE_CHECKING:
    from tenon_platforms.batch import AttentionBatch
    from tenon_platforms.device import Device
    from tenon_platforms.ops.attention import AttentionSpec
    from tenon_triton.attention.launch import Context

    from ..capabilities import Arch

HEAD_DIMS = (64, 96, 128)
# Blocks as long as a tile of keys are fetched whole, and what nobody has written behind a row's end may be NaN: so is
# 0 * NaN. Tiles hold 128 tokens and more for these heads; shorter blocks are read to the row's end only.
SHORT_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What every edition is told. starts: int32 [rows + 1]; lengths: int32 [rows]; table: int32 [rows, blocks]."""

    starts: Tensor
    lengths: Tensor
    table: Tensor
    longest: int
    longest_context: int


def _scores(spec: AttentionSpec, unbounded: int | None) -> dict[str, Any]:
    """What all call alike; a window is the tokens seen before and behind one's own."""
    window = (spec.sliding_window - 1, 0) if spec.sliding_window else (unbounded, unbounded)
    return {"softmax_scale": spec.scale, "causal": spec.causal, "window_size": window, "softcap": spec.soft_cap}


def _second(function: Any, query: Tensor, keys: Tensor, values: Tensor, rows: Rows, spec: AttentionSpec) -> Tensor:
    result: Tensor = function(
        query,
        keys,
        values,
        rows.starts,
        pad(rows.lengths.cumsum(0, dtype=torch.int32), (1, 0)),
        rows.longest,
        rows.longest_context,
        **_scores(spec, -1),
        block_table=rows.table,
    )
    return result


def _third(function: Any, query: Tensor, keys: Tensor, values: Tensor, rows: Rows, spec: AttentionSpec) -> Tensor:
    result: Tensor = function(
        query,
        keys,
        values,
        cache_seqlens=rows.lengths,
        page_table=rows.table,
        cu_seqlens_q=rows.starts,
        max_seqlen_q=rows.longest,
        **_scores(spec, -1),
    )
    return result


def _fourth(function: Any, query: Tensor, keys: Tensor, values: Tensor, rows: Rows, spec: AttentionSpec) -> Tensor:
    result = function(
        query,
        keys,
        values,
        cu_seqlens_q=rows.starts,
        max_seqlen_q=rows.longest,
        seqused_k=rows.lengths,
        page_table=rows.table,
        **_scores(spec, None),
    )
    output: Tensor = result[0] if isinstance(result, tuple) else result  # beside it the softmax's logarithms
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """One of its packages. majors: of the compute capabilities it serves. Blocks: multiples of `page` up to `most`."""

    library: Library
    function: str
    call: Callable[..., Tensor]
    majors: tuple[int, ...]
    page: int = 1
    most: int = SHORT_BLOCK

    def takes(self, block_size: int) -> bool:
        """Whether it reads blocks of so many tokens."""
        return block_size % self.page == 0 and block_size <= self.most


EDITIONS = (  # the first that is installed for the GPU
    Edition(
        library=Library(distribution="flash_attn_3", module="flash_attn_interface", versions=">=3.0.0b1,<4"),
        function="flash_attn_with_kvcache",
        call=_third,
        majors=(9,),
    ),
    Edition(
        library=Library(distribution="flash-attn-4", module="flash_attn.cute", versions=">=4.0.0b5,<5"),
        function="flash_attn_varlen_func",
        call=_fourth,
        majors=(9, 10),
    ),
    Edition(
        library=Library(distribution="flash-attn", module="flash_attn", versions=">=2.7.3,<3"),
        function="flash_attn_varlen_func",
        call=_second,
        majors=(8, 9, 12),
        page=256,
        most=1 << 16,
    ),
)


def edition_for(arch: Arch) -> Edition | No:
    """The edition that is installed for this GPU, or why there is none."""
    served = [edition for edition in EDITIONS if arch.major in edition.majors]
    missing = [(edition, edition.library.missing()) for edition in served]
    for edition, reason in missing:
        if reason is None:
            return edition
    if not missing:
        return No(f"no edition serves {arch}")
    reasons = [reason for _, reason in missing if reason is not None]
    return No("; ".join(reason.reason for reason in reasons), reasons[0].alternative)


def refused(spec: AttentionSpec, arch: Arch) -> No | None:
    """Why it does not serve this here, or None."""
    edition = edition_for(arch)
    return edition if isinstance(edition, No) else refusal(spec, HEAD_DIMS)


@dataclass(slots=True, kw_only=True)
class FlashAttentionPlan:
    """One step's prompts."""

    prompts: FlashAttentionPrompts
    rows: PromptRows
    told: Rows

    def run(self, output: Tensor, query: Tensor, cache: Tensor, context: Context) -> None:
        tokens = slice(self.rows.first_token, self.rows.end_token)
        keys, values = (part.transpose(1, 2) for part in cache.unbind(1))  # [blocks, block_size, kv heads, head_dim]
        found = self.prompts.edition.call(
            self.prompts.function, query[tokens], keys, values, self.told, self.prompts.spec
        )
        output[tokens].copy_(found)


@dataclass(slots=True, kw_only=True)
class FlashAttentionPrompts:
    """`tenon_triton.attention.LongPrompts` for one spec. Made without importing the library, which `warm` does."""

    spec: AttentionSpec
    edition: Edition
    device: Device
    function: Any = field(default=None, init=False)

    @property
    def graph_support(self) -> GraphSupport:
        return GraphSupport.SINGLE_TOKEN_DECODE  # what its plans hold is the host's

    @property
    def needs_exact_host_lengths(self) -> bool:
        return False

    @property
    def workspace_bytes(self) -> int:
        return 0

    def takes(self, spec: AttentionSpec, block_size: int) -> bool:
        return spec == self.spec and self.edition.takes(block_size)

    def warm(self, spec: AttentionSpec, block_size: int) -> None:
        """Import it and attend to one token, which compiles what it compiles. Raises `PluginError` where that fails."""
        library = self.edition.library
        make: dict[str, Any] = {"device": self.device.torch_device, "dtype": to_torch(spec.dtype)}
        query = torch.zeros(1, spec.num_heads, spec.head_dim, **make)
        block = torch.zeros(1, block_size, spec.num_kv_heads, spec.head_dim, **make)
        starts = torch.arange(2, dtype=torch.int32, device=query.device)
        one = Rows(starts=starts, lengths=starts[1:], table=starts[:1, None], longest=1, longest_context=1)
        try:
            self.function = getattr(importlib.import_module(library.module), self.edition.function)
            self.edition.call(self.function, query, block, block, one, spec)
        except torch.cuda.OutOfMemoryError:
            raise
        except (ImportError, OSError, AttributeError, AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise PluginError(
                f"{library.distribution} does not load or attend here: {type(error).__name__}: {error}",
                remedy=f"reinstall {library.distribution} for this torch, or pass --platform-opt cuda.attention=triton",
            ) from error

    def plan(self, batch: AttentionBatch, first_row: int, spec: AttentionSpec) -> FlashAttentionPlan | None:
        rows = PromptRows.of(batch, first_row)
        if rows is None:
            return None
        width = -(-int(rows.seq_lens.max()) // batch.block_size)  # of an upper bound, where that is what the host has
        told = Rows(
            starts=batch.query_starts[first_row : rows.end_row + 1] - rows.first_token,
            lengths=batch.seq_lens[first_row : rows.end_row],
            table=batch.block_table[batch.rows[first_row : rows.end_row].long(), :width],
            longest=rows.longest,
            longest_context=int(rows.seq_lens.max()),
        )
        return FlashAttentionPlan(prompts=self, rows=rows, told=told)
