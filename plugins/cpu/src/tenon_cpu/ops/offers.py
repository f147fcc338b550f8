"""Every kernel the CPU platform offers, and the features each understands."""

from __future__ import annotations

from typing import Any

from tenon_platforms.attention import attention_kernel
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import ActivationMulSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.ops.table import OpTable

from ..attention import CPUAttention
from ..isa import CPU
from ..step_memo import StepMemo
from . import linear, mlp, moe, norm, rope, sampling

NORM = {"rms_norm.weight_offset"}


def register(table: OpTable, cpu: CPU, *, weights: str, gguf: str) -> None:
    """Offer the kernels. weights, gguf: the platform's options."""
    policy = linear.WeightPolicy(cpu=cpu, weights=weights, gguf=gguf)
    memo = StepMemo()

    def attention(spec: AttentionSpec) -> Kernel | No:
        if spec.kv_dtype != DType.FLOAT32:
            return No(f"sums in the cache's type, float32 only, not {spec.kv_dtype}", "kv_cache_dtype float32")
        if spec.num_heads % spec.num_kv_heads:
            return No(f"{spec.num_heads} heads over {spec.num_kv_heads} KV heads is no whole group")
        backend: Any = CPUAttention(spec, memo)
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
