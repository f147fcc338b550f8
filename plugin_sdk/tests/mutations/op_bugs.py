"""Bugs of rowwise ops, products, rotations and lookups."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from mutations.planting import Registry, wrap_run, wrap_spec

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import ActivationMulSpec, MLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, LayerNormSpec, RMSNormSpec
from tenon_platforms.ops.pooling import MeanPoolSpec
from tenon_platforms.ops.rope import RopeSpec
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec

TILE = 16


def last_tile_lost(run: Any, spec: Any) -> Any:
    """Only whole tiles of rows are computed."""

    def bug(x: Any, *rest: Any) -> Any:
        y = run(x, *rest)
        if len(y) % TILE and len(y) > TILE:
            y[len(y) // TILE * TILE :] = 0
        return y

    return bug


def contiguous_assumed(run: Any, spec: Any) -> Any:
    """Rows are read as if they followed each other without a gap."""

    def bug(x: Any, *rest: Any) -> Any:
        return run(x.as_strided(x.shape, (x[0].numel(), *x.stride()[1:])) if len(x) else x, *rest)

    return bug


def nan_to_neighbour(run: Any, spec: Any) -> Any:
    """A reduction over the batch leaks between rows."""

    def bug(x: Any, *rest: Any) -> Any:
        y = run(x, *rest)
        return y + x.sum() * 0 if len(x) else y

    return bug


def squares_in_half(run: Any, spec: Any) -> Any:
    def bug(x: Any, weight: Any) -> Any:
        square = (x * x).half() if spec.dtype is DType.FLOAT16 else (x * x).bfloat16()
        scale = torch.rsqrt(square.float().mean(-1, keepdim=True) + spec.eps)
        return (x.float() * scale * (weight.float() + spec.weight_offset)).to(x.dtype)

    return bug


def sum_not_returned(run: Any, spec: Any) -> Any:
    return lambda x, residual, weight: (run(x, residual, weight)[0], residual)


def bfloat16_product(run: Any, spec: Any) -> Any:
    """A float32 product through bfloat16: an over-claimed type."""
    return lambda x, w: run(x.bfloat16().to(x.dtype), w)


def bias_forgotten(run: Any, spec: Any) -> Any:
    return lambda x, w: run(x, (w[0], None))


def parts_swapped(run: Any, spec: Any) -> Any:
    def bug(x: Any, w: Any) -> Any:
        y = run(x, w)
        if len(spec.parts) == 3:
            q, k, v = y.split([part.out_features for part in spec.parts], dim=-1)
            y = torch.cat((q, v, k), dim=-1)
        return y

    return bug


def racy(run: Any, spec: Any) -> Any:
    """Two threads add to one place without a lock, now and then."""
    calls = [0]

    def bug(x: Any, w: Any) -> Any:
        calls[0] += 1
        y = run(x, w)
        if y.numel() and calls[0] % 2 == 0:
            y.view(-1)[0] += 1e-7 * y.abs().max() + 1e-30
        return y

    return bug


def writes_past_the_end(run: Any, spec: Any) -> Any:
    def bug(x: Any, *rest: Any) -> Any:
        if len(x):
            x.as_strided((1,), (1,), x.storage_offset() + x.numel())[0] = 0.0
        return run(x, *rest)

    return bug


def experts_unweighted(run: Any, spec: Any) -> Any:
    def bug(x: Any, weights: Any) -> Any:
        return run(x, weights) * (1.0 if spec.top_k == 1 else 0.999)

    return bug


def table_shifted(run: Any, spec: Any) -> Any:
    return lambda ids, w: run((ids + 1).clamp_max(spec.vocab_size - 1), w)


def positions_shifted(run: Any, spec: Any) -> Any:
    return lambda q, k, positions, table: run(q, k, (positions - 1).clamp_min(0), table)


def only_query_rotated(run: Any, spec: Any) -> Any:
    return lambda q, k, positions, table: (run(q, k, positions, table)[0], k)


def sine_negated(run: Any, spec: Any) -> Any:
    def bug(q: Any, k: Any, positions: Any, table: Any) -> Any:
        cos, sin = table.chunk(2, -1)
        return run(q, k, positions, torch.cat((cos, -sin), -1))

    return bug


def first_axis_only(run: Any, spec: Any) -> Any:
    return lambda q, k, positions, table: run(q, k, positions[:1].expand_as(positions), table)


def padding_slots_live(run: Any, spec: Any) -> Any:
    """Padding tokens are written where the last row's block is."""

    def bug(inputs: Any, state: Any) -> Any:
        every = torch.full_like(inputs.num_valid, 2**30)
        ids, slots = run(dataclasses.replace(inputs, num_valid=every), state)
        table = state.block_tables[:, 0, 0]
        n = int(inputs.num_valid[0])
        moved = []
        for group, slot in enumerate(slots):
            slot = slot.clone()
            slot[n:] += table[group] * spec.block_sizes[group]
            moved.append(slot)
        return ids, tuple(moved)

    return bug


def stale_params(run: Any, spec: Any) -> Any:
    return lambda state, places, blocks, rows, params: run(state, places, blocks, rows[:0], params[:0])


def half_of_writes(run: Any, spec: Any) -> Any:
    """A launch of 16 threads for 32 entries."""
    return lambda state, places, blocks, rows, params: run(state, places[:16], blocks[:16], rows, params)


def padding_averaged(run: Any, spec: Any) -> Any:
    """The valid-token count is not looked at: padding counts as the first row's."""

    def bug(x: Any, rows: Any, starts: Any, num_valid: Any) -> Any:
        return run(x, rows, starts, torch.full_like(num_valid, len(x)))

    return bug


def mean_not_taken(run: Any, spec: Any) -> Any:
    """A layer norm computed as a root-mean-square norm."""

    def bug(x: Any, weights: Any) -> Any:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + spec.eps)
        return (scaled * weights.weight.float() + weights.bias.float()).to(x.dtype)

    return bug


def register(to: Registry) -> None:
    """All of them."""
    norm, linear = "L2/rms_norm/float32-64", "L2/merged_linear/float32-from-float32"
    for name, check, what, plant in (
        ("tail-rows-lost", norm, "the last, partial tile of rows", wrap_run(RMSNormSpec, last_tile_lost)),
        ("contiguous-assumed", norm, "row stride ignored", wrap_run(RMSNormSpec, contiguous_assumed)),
        ("nan-to-neighbours", norm, "NaN of one row reaches all", wrap_run(RMSNormSpec, nan_to_neighbour)),
        (
            "eps-outside",
            "L2/rms_norm/float32-64",
            "another epsilon",
            wrap_spec(RMSNormSpec, lambda s: dataclasses.replace(s, eps=s.eps * 100)),
        ),
        (
            "offset-ignored",
            "L2/rms_norm/float32-offset",
            "Gemma's weight offset",
            wrap_spec(RMSNormSpec, lambda s: dataclasses.replace(s, weight_offset=0.0)),
        ),
        (
            "squares-in-half",
            "L2/rms_norm/float16-64",
            "squares overflow float16",
            wrap_run(RMSNormSpec, squares_in_half),
        ),
        (
            "sum-not-returned",
            "L2/add_rms_norm/float32-64",
            "old residual returned",
            wrap_run(AddRMSNormSpec, sum_not_returned),
        ),
        (
            "type-not-rounded",
            "L2/rms_norm/bfloat16-64",
            "float32 returned for bfloat16",
            wrap_run(RMSNormSpec, lambda run, spec: lambda x, weight: run(x, weight).float()),
        ),
        ("write-past-end", norm, "writes one element past its input", wrap_run(RMSNormSpec, writes_past_the_end)),
        ("dtype-over-claimed", linear, "float32 computed in bfloat16", wrap_run(MergedLinearSpec, bfloat16_product)),
        (
            "bias-forgotten",
            "L2/merged_linear/float32-qkv-biased",
            "no bias",
            wrap_run(MergedLinearSpec, bias_forgotten),
        ),
        ("parts-swapped", "L2/merged_linear/float32-qkv-biased", "q, v, k", wrap_run(MergedLinearSpec, parts_swapped)),
        (
            "linear-tail",
            "L2/merged_linear/float32-long",
            "the last tile of rows",
            wrap_run(MergedLinearSpec, last_tile_lost),
        ),
        ("race", linear, "an unlocked sum: other bits at every run", wrap_run(MergedLinearSpec, racy)),
        (
            "invariance-claimed",
            "L2/merged_linear/float32-long",
            "batch invariance claimed of a plain GEMM",
            wrap_run(
                MergedLinearSpec, lambda run, spec: lambda x, w: run(x, w) + 1e-7 * (len(x) - 1), batch_invariant=True
            ),
        ),
        (
            "wrong-activation",
            "L2/activation_mul/float32-gelu",
            "tanh for erf",
            wrap_spec(
                ActivationMulSpec,
                lambda s: dataclasses.replace(s, activation={"gelu": "gelu_tanh"}.get(s.activation, s.activation)),
            ),
        ),
        (
            "gate-and-up-swapped",
            "L2/activation_mul/float32-silu",
            "the other half",
            wrap_run(ActivationMulSpec, lambda run, spec: lambda x: run(x.roll(spec.features, -1))),
        ),
        (
            "expert-weights",
            "L2/moe_layer/float32-8x2",
            "expert weights not quite one",
            wrap_run(MoESpec, experts_unweighted),
        ),
        (
            "not-renormalized",
            "L2/moe_layer/float32-8x2",
            "top-k weights not divided by their sum",
            wrap_spec(MoESpec, lambda s: dataclasses.replace(s, renormalize=False)),
        ),
        ("table-shifted", "L2/embedding/float32", "lookup one row off", wrap_run(EmbeddingSpec, table_shifted)),
        (
            "embedding-unscaled",
            "L2/embedding/float32-scaled",
            "no scale",
            wrap_spec(EmbeddingSpec, lambda s: dataclasses.replace(s, scale=1.0)),
        ),
        ("rope-off-by-one", "L2/rope/float32-whole", "positions one low", wrap_run(RopeSpec, positions_shifted)),
        ("rope-key-forgotten", "L2/rope/float32-whole", "keys not rotated", wrap_run(RopeSpec, only_query_rotated)),
        ("rope-sine", "L2/rope/float32-whole", "turned the other way", wrap_run(RopeSpec, sine_negated)),
        (
            "rope-halves",
            "L2/rope/float32-interleaved",
            "halves for neighbours",
            wrap_spec(RopeSpec, lambda s: dataclasses.replace(s, interleaved=False)),
        ),
        ("rope-axes", "L2/rope/float32-axes", "one axis for all", wrap_run(RopeSpec, first_axis_only)),
        (
            "rope-partial",
            "L2/rope/float32-partial",
            "rotates past rotary_dim",
            wrap_run(
                RopeSpec,
                lambda run, spec: (
                    lambda q, k, p, t: tuple(
                        torch.cat((y[..., : spec.rotary_dim], y[..., spec.rotary_dim :] * t[p[0]][:, None, :1]), -1)
                        for y in run(q, k, p, t)
                    )
                ),
            ),
        ),
        (
            "padding-slots",
            "L2/prepare_inputs/one-group",
            "padding written into a live block",
            wrap_run(PrepareInputsSpec, padding_slots_live),
        ),
        (
            "row-params-stale",
            "L2/row_writes/1",
            "new rows keep the old parameters",
            wrap_run(RowWritesSpec, stale_params),
        ),
        (
            "row-writes-cut",
            "L2/row_writes/2",
            "only the first 16 table entries",
            wrap_run(RowWritesSpec, half_of_writes),
        ),
        (
            "mean-not-taken",
            "L2/layer_norm/float32-64",
            "layer norm without its mean",
            wrap_run(LayerNormSpec, mean_not_taken),
        ),
        (
            "another-gelu",
            "L2/mlp/float32-gelu",
            "the tanh form of an exact activation",
            wrap_spec(MLPSpec, lambda s: dataclasses.replace(s, activation="gelu_tanh")),
        ),
        (
            "padding-averaged",
            "L2/mean_pool/float32-96",
            "padding counts in a mean",
            wrap_run(MeanPoolSpec, padding_averaged),
        ),
    ):
        to.add(name, check, what, plant)
