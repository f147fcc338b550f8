"""Launches of the attention kernels: from tensors and a configuration to grids and constants."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tenon_platforms.ops.attention import AttentionSpec

from .. import early
from ..facts import CACHE_LINE
from .configs import JOIN_ELEMENTS, MIN_ROWS, DecodeConfig, TileConfig, next_power, padded_dim
from .decode import decode_kernel, join_kernel
from .prefill import prefill_kernel


@dataclass(slots=True, kw_only=True)
class Context:
    """Where rows' contexts are: tensors as in `AttentionBatch`, views of the step's inputs.

    decodes_apart: which rows are decodes is seen on the device: one launch takes those, another leaves them out.
    """

    block_table: Tensor
    rows: Tensor
    query_starts: Tensor
    seq_lens: Tensor
    block_size: int
    decodes_apart: bool = False


@dataclass(slots=True, kw_only=True)
class Workspace:
    """Parts of decode rows between their program and the one that joins them. Sequential launches share it.

    mixed: float32 [parts of heads * head_dim]. log: float32 [parts of heads]. arrivals: int32 [rows * kv heads], zero.
    """

    mixed: Tensor
    log: Tensor
    arrivals: Tensor


def launch_prefill(
    output: Tensor,
    query: Tensor,
    cache: Tensor,
    sinks: Tensor | None,
    context: Context,
    num_rows: int,
    first_row: int,
    num_tokens: int,
    spec: AttentionSpec,
    config: TileConfig,
) -> None:
    """Rows [first_row, first_row + num_rows), which hold at most `num_tokens` tokens together, into `output`."""
    group = spec.num_heads // spec.num_kv_heads
    grid = (spec.num_kv_heads, num_tokens // (config.block_rows // group) + num_rows)
    prefill_kernel[grid](
        output,
        query,
        cache,
        context.block_table,
        context.rows,
        context.query_starts,
        context.seq_lens,
        sinks,
        first_row,
        num_rows,
        context.block_table.stride(0),
        cache.stride(0),
        query.stride(0),
        query.stride(1),
        output.stride(0),
        spec.scale,
        spec.soft_cap,
        NUM_KV_HEADS=spec.num_kv_heads,
        GROUP=group,
        DIM=spec.head_dim,
        DIM_PAD=padded_dim(spec.head_dim),
        PAGE=context.block_size,
        TILE=config.tile,
        BLOCK_ROWS=config.block_rows,
        CAUSAL=spec.causal,
        WINDOW=spec.sliding_window,
        SOFT_CAP=spec.soft_cap > 0,
        SINKS=spec.sinks,
        APART=context.decodes_apart,
        num_warps=config.warps,
        num_stages=config.stages,
    )


def launch_decode(
    output: Tensor,
    query: Tensor,
    cache: Tensor,
    sinks: Tensor | None,
    context: Context,
    num_rows: int,
    parts: int,
    workspace: Workspace,
    spec: AttentionSpec,
    config: DecodeConfig,
) -> None:
    """The first `num_rows` rows, whose tokens are the first of `query`, in at most `parts` parts each."""
    group, dim = spec.num_heads // spec.num_kv_heads, spec.head_dim
    padded, lines = padded_dim(dim), next_power(group)
    min_tiles = -(-config.min_tokens // config.tile)
    options = {"num_warps": config.warps, "num_stages": config.stages, **early.options()}
    decode_kernel[(spec.num_kv_heads, num_rows, parts)](
        output,
        query,
        cache,
        context.block_table,
        context.rows,
        context.query_starts,
        context.seq_lens,
        sinks,
        workspace.mixed,
        workspace.log,
        workspace.arrivals,
        parts,
        context.block_table.stride(0),
        cache.stride(0),
        query.stride(0),
        query.stride(1),
        output.stride(0),
        spec.scale,
        spec.soft_cap,
        NUM_KV_HEADS=spec.num_kv_heads,
        GROUP=group,
        DIM=dim,
        DIM_PAD=padded,
        PAGE=context.block_size,
        TILE=config.tile,
        BLOCK_ROWS=max(MIN_ROWS, next_power(group)),
        LINES=lines,
        CACHE_LINES=max(1, padded * cache.element_size() // CACHE_LINE) if config.fetches else 0,
        FETCHES=config.fetches,
        STRANDS=config.strands,
        MIN_TILES=min_tiles,
        CHUNK=max(JOIN_ELEMENTS // (padded * lines), 1),
        WINDOW=spec.sliding_window,
        SOFT_CAP=spec.soft_cap > 0,
        SINKS=spec.sinks,
        JOIN=config.join,
        TAIL=config.tail and spec.sliding_window == 0,
        APART=context.decodes_apart,
        **options,
    )
    if parts > 1 and not config.join:
        join_kernel[(spec.num_heads, num_rows)](
            output,
            context.query_starts,
            context.seq_lens,
            workspace.mixed,
            workspace.log,
            parts,
            output.stride(0),
            NUM_HEADS=spec.num_heads,
            DIM=dim,
            DIM_PAD=padded,
            TILE=config.tile,
            MIN_TILES=min_tiles,
            CHUNK=max(JOIN_ELEMENTS // padded, 1),
            WINDOW=spec.sliding_window,
            APART=context.decodes_apart,
            num_warps=4,
            **early.options(),
        )
