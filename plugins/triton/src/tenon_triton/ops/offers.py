"""Every kernel of this folder as an offer, for platforms whose torch device runs Triton. Attention is offered apart."""

from __future__ import annotations

from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import ActivationMulSpec, GatedMLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.table import OpTable

from . import gated_mlp, linear, logprobs, mlp, moe, norm, rope_kv, rows, sampling
from .linear import LinearPolicy

NORM = {"rms_norm.weight_offset"}


def register(table: OpTable, policy: LinearPolicy) -> None:
    """Offer the kernels. `policy`: how linears are computed on the platform's device."""
    invariant = policy.one_tile()
    table.offer(RMSNormSpec, "triton rows", norm.rms_norm, features=NORM)
    table.offer(AddRMSNormSpec, "triton rows", norm.add_rms_norm, features=NORM)
    table.offer(ActivationMulSpec, "triton", mlp.activation_mul)
    table.offer(QKNormRopeKVWriteSpec, "triton", rope_kv.qk_norm_rope_kv_write, features=NORM)
    table.offer(PrepareInputsSpec, "triton", rows.prepare_inputs)
    table.offer(RowWritesSpec, "triton", rows.row_writes)
    table.offer(SamplerSpec, "triton", sampling.sampler, features={"sampler.grammar_mask"})
    table.offer(TokenLogprobsSpec, "triton", logprobs.token_logprobs)
    table.offer(MoESpec, "triton grouped", moe.moe_layer)
    table.offer(MergedLinearSpec, "triton by table", lambda spec: linear.merged_linear(spec, policy), priority=1)
    table.offer(MergedLinearSpec, "triton one tile", lambda spec: linear.merged_linear(spec, invariant))
    table.offer(GatedMLPSpec, "triton by table", lambda spec: gated_mlp.gated_mlp(spec, policy), priority=1)
    table.offer(GatedMLPSpec, "triton one tile", lambda spec: gated_mlp.gated_mlp(spec, invariant))
