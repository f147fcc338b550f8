"""Every kernel the CPU platform offers, and the features each understands."""

from __future__ import annotations

from typing import Any

from tenon_platforms.attention import attention_kernel
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import ActivationMulSpec, GatedMLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.table import OpTable

from .. import native_attention
from ..attention import CPUAttention
from ..isa import CPU
from ..step_memo import StepMemo
from . import linear, mlp, moe, native_layers, native_rows, native_weights, norm, rope, sampling

NORM = {"rms_norm.weight_offset"}
ATTENTION = {"attention.sliding_window", "attention.soft_cap", "attention.sinks", "attention.bidirectional"}
NATIVE_FIRST = 10  # the priority of native kernels over torch's


def register(table: OpTable, device: Device, cpu: CPU, *, weights: str, gguf: str, is_native: bool) -> None:
    """Offer the kernels. weights, gguf: the platform's options. is_native: with the library's before torch's."""
    policy = linear.WeightPolicy(cpu=cpu, weights=weights, gguf=gguf)
    memo = StepMemo()

    def attention(spec: AttentionSpec) -> Kernel | No:
        if spec.kv_dtype != DType.FLOAT32:
            return No(f"sums in the cache's type, float32 only, not {spec.kv_dtype}", "--kv-cache-dtype float32")
        if spec.num_heads % spec.num_kv_heads:
            return No(f"{spec.num_heads} heads over {spec.num_kv_heads} KV heads is no whole group")
        backend: Any = CPUAttention(spec, memo, device)
        return attention_kernel("paged bags", backend, flags=KernelFlags(graph_safe=False))

    table.offer(AttentionSpec, "paged bags", attention, features={"attention.sliding_window"})
    table.offer(MergedLinearSpec, "packed", lambda spec: linear.merged_linear(spec, policy))
    table.offer(MoESpec, "sorted", lambda spec: moe.moe_layer(spec, policy))
    table.offer(RMSNormSpec, "vector_norm", norm.rms_norm, features=NORM)
    table.offer(AddRMSNormSpec, "add + vector_norm", norm.add_rms_norm, features=NORM)
    table.offer(ActivationMulSpec, "in place", mlp.activation_mul)
    table.offer(
        QKNormRopeKVWriteSpec, "one rotation", lambda spec: rope.qk_norm_rope_kv_write(spec, memo), features=NORM
    )
    table.offer(SamplerSpec, "survivors", lambda spec: sampling.sampler(spec, table))
    if is_native:
        packer = native_weights.Packer(weights=weights, gguf=gguf, alike=table.batch_invariant)
        register_native(table, device, packer)


def register_native(table: OpTable, device: Device, packer: native_weights.Packer) -> None:
    """Offer the native library's kernels before torch's."""

    def attention(spec: AttentionSpec) -> Kernel | No:
        if (refusal := native_attention.refuses(spec)) is not None:
            return refusal
        backend: Any = native_attention.NativeAttention(spec, device)
        return attention_kernel(
            "native", backend, flags=KernelFlags(batch_invariant=not native_attention.has_tiles(spec))
        )

    first = NATIVE_FIRST
    table.offer(AttentionSpec, "native", attention, features=ATTENTION, priority=first)
    table.offer(RMSNormSpec, "native", native_layers.rms_norm, features=NORM, priority=first)
    table.offer(AddRMSNormSpec, "native", native_layers.add_rms_norm, features=NORM, priority=first)
    table.offer(ActivationMulSpec, "native", native_layers.activation_mul, priority=first)
    table.offer(
        EmbeddingSpec,
        "native",
        lambda spec: native_weights.embedding(spec, packer),
        features={"embedding.scale"},
        priority=first,
    )
    table.offer(MergedLinearSpec, "native", lambda spec: native_weights.merged_linear(spec, packer), priority=first)
    table.offer(GatedMLPSpec, "native", lambda spec: native_weights.gated_mlp(spec, packer), priority=first)
    table.offer(MoESpec, "native", lambda spec: moe.native_moe_layer(spec, packer), priority=first)
    table.offer(
        QKNormRopeKVWriteSpec,
        "native",
        native_layers.qk_norm_rope_kv_write,
        features=NORM | {"rope.interleaved"},
        priority=first,
    )
    table.offer(PrepareInputsSpec, "native", native_rows.prepare_inputs, priority=first)
    table.offer(RowWritesSpec, "native", native_rows.row_writes, priority=first)
    table.offer(SamplerSpec, "native", native_rows.sampler, features={"sampler.grammar_mask"}, priority=first)
    table.offer(TokenLogprobsSpec, "native", native_rows.token_logprobs, priority=first)
