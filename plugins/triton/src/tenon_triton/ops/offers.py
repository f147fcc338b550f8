"""Every kernel of this folder as an offer, for platforms whose torch device runs Triton. Attention is offered apart.

A platform calls `register` and adds nothing of its own to it: what is offered, and with which features, stands here.
"""

from __future__ import annotations

from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import ActivationMulSpec, GatedMLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, LayerNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.table import OpTable

from . import (
    blocks,
    gated_mlp,
    layer_norm,
    linear,
    logprobs,
    mlp,
    moe,
    norm,
    normed,
    rope_kv,
    rows,
    sampling,
)
from .linear import LinearPolicy

NORM = {"rms_norm.weight_offset"}
MASK = {"sampler.grammar_mask"}
HEAD = "head"  # the part whose error is a logit's


def register(table: OpTable, policy: LinearPolicy, *, head: LinearPolicy | None = None, priority: int = 0) -> None:
    """Offer the kernels. Raises `PluginError` where an offer's name is taken.

    policy: how linears are computed on the platform's device; one tile is chosen where the table wants rows that do not
    depend on the batch. head: the same for the head, where it differs. priority: of every offer.
    """
    policy, head = (one.one_tile() if table.batch_invariant else one for one in (policy, head or policy))

    def merged(spec: MergedLinearSpec) -> Kernel | No:
        return linear.merged_linear(spec, head if any(part.name == HEAD for part in spec.parts) else policy)

    def gated(spec: GatedMLPSpec) -> Kernel | No:
        return gated_mlp.gated_mlp(spec, policy)

    def normed_then(spec: AddRMSNormThenSpec) -> Kernel | No:
        return normed.add_rms_norm_then(spec, policy)

    def blocks_of(spec: MergedLinearSpec) -> Kernel | No:
        return blocks.merged_linear(spec, policy)

    table.offer(MergedLinearSpec, "triton.blocks", blocks_of, priority=priority)
    table.offer(MergedLinearSpec, "triton.linear", merged, priority=priority)
    table.offer(GatedMLPSpec, "triton.gated_mlp", gated, priority=priority)
    table.offer(AddRMSNormThenSpec, "triton.add_rms_norm_then", normed_then, features=NORM, priority=priority)
    table.offer(MoESpec, "triton.moe", moe.moe_layer, priority=priority)
    table.offer(ActivationMulSpec, "triton.activation_mul", mlp.activation_mul, priority=priority)
    table.offer(RMSNormSpec, "triton.rms_norm", norm.rms_norm, features=NORM, priority=priority)
    table.offer(LayerNormSpec, "triton.layer_norm", layer_norm.layer_norm, priority=priority)
    table.offer(AddRMSNormSpec, "triton.add_rms_norm", norm.add_rms_norm, features=NORM, priority=priority)
    rotation = rope_kv.qk_norm_rope_kv_write
    table.offer(QKNormRopeKVWriteSpec, "triton.rope_kv", rotation, features=NORM, priority=priority)
    table.offer(PrepareInputsSpec, "triton.prepare_inputs", rows.prepare_inputs, priority=priority)
    table.offer(RowWritesSpec, "triton.row_writes", rows.row_writes, priority=priority)
    table.offer(SamplerSpec, "triton.sampler", sampling.sampler, features=MASK, priority=priority)
    table.offer(TokenLogprobsSpec, "triton.token_logprobs", logprobs.token_logprobs, priority=priority)
