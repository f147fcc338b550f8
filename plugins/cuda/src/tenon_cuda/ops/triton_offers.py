"""tenon-triton's kernels, offered with what they must know of an NVIDIA GPU.

The library registers nothing by itself and knows no device: this file names every kernel that is taken from it, the
features it understands, and the policy of its linears.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import MergedLinearSpec
from tenon_platforms.ops.mlp import ActivationMulSpec, GatedMLPSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.ops.table import OpTable
from tenon_triton.attention import offer as attention
from tenon_triton.facts import DeviceFacts
from tenon_triton.ops import gated_mlp, linear, mlp, norm, rope_kv, rows, sampling

from ..capabilities import Arch
from ..options import CUDAOptions

if TYPE_CHECKING:
    from tenon_platforms.device import Device

PRIORITY = 10
ASYNC_COPIES_FROM = (8, 0)
DEFAULT_SHARED_BYTES = 48 << 10  # where torch does not tell: what every card grants
NORM = {"rms_norm.weight_offset"}
HEAD = "head"  # it is never quantized: its error is a logit's


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearChoice:
    """The library's policy, and the one for weights that stay as they are."""

    layers: linear.LinearPolicy
    head: linear.LinearPolicy

    def merged(self, spec: MergedLinearSpec) -> Kernel | No:
        """An offer for linears."""
        policy = self.head if any(part.name == HEAD for part in spec.parts) else self.layers
        return linear.merged_linear(spec, policy)

    def gated(self, spec: GatedMLPSpec) -> Kernel | No:
        """An offer for gated MLPs."""
        return gated_mlp.gated_mlp(spec, self.layers)


def device_facts(device: Device, arch: Arch) -> DeviceFacts:
    """What kernels need to know of an open device."""
    found = torch.cuda.get_device_properties(device.torch_device)
    return DeviceFacts(
        compute_units=found.multi_processor_count,
        shared_bytes=getattr(found, "shared_memory_per_block_optin", DEFAULT_SHARED_BYTES),
        warp_size=32,
        fp8=arch.has_fp8,
        async_copies=(arch.major, arch.minor) >= ASYNC_COPIES_FROM,
    )


def linear_choice(facts: DeviceFacts, settings: CUDAOptions, *, invariant: bool) -> LinearChoice:
    """How linears are computed under the operator's options."""
    head = linear.LinearPolicy(float8=facts.fp8)
    if invariant:
        head = head.one_tile()
    return LinearChoice(head=head, layers=replace(head, online_float8=settings.quantize == "fp8"))


def register(table: OpTable, device: Device, facts: DeviceFacts, settings: CUDAOptions) -> None:
    """Offer them all. Raises `PluginError` where an offer's name is taken."""
    linears = linear_choice(facts, settings, invariant=table.batch_invariant)

    def paged(spec: AttentionSpec) -> Kernel | No:
        return attention.paged_attention(spec, device, facts, batch_invariant=table.batch_invariant)

    table.offer(AttentionSpec, "triton.paged", paged, features=attention.FEATURES, priority=PRIORITY)
    table.offer(MergedLinearSpec, "triton.by_table", linears.merged, priority=PRIORITY)
    table.offer(GatedMLPSpec, "triton.gated_mlp", linears.gated, priority=PRIORITY)
    table.offer(ActivationMulSpec, "triton.activation_mul", mlp.activation_mul, priority=PRIORITY)
    table.offer(RMSNormSpec, "triton.rms_norm", norm.rms_norm, features=NORM, priority=PRIORITY)
    table.offer(AddRMSNormSpec, "triton.add_rms_norm", norm.add_rms_norm, features=NORM, priority=PRIORITY)
    table.offer(
        QKNormRopeKVWriteSpec, "triton.rope_kv", rope_kv.qk_norm_rope_kv_write, features=NORM, priority=PRIORITY
    )
    table.offer(PrepareInputsSpec, "triton.prepare_inputs", rows.prepare_inputs, priority=PRIORITY)
    table.offer(RowWritesSpec, "triton.row_writes", rows.row_writes, priority=PRIORITY)
    table.offer(SamplerSpec, "triton.sampler", sampling.sampler, priority=PRIORITY)
