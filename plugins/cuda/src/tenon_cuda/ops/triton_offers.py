"""tenon-triton's kernels, offered with what they must know of an NVIDIA GPU: its facts, and the policy of its linears.

Which kernels there are and what they understand is the library's to say (`tenon_triton.ops.offers`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.table import OpTable
from tenon_triton.attention import offer as attention
from tenon_triton.facts import DeviceFacts
from tenon_triton.ops import gated_mlp, normed, offers
from tenon_triton.ops.linear import LinearPolicy

from ..capabilities import Arch
from ..options import LIBRARIES, CUDAOptions

if TYPE_CHECKING:
    from tenon_platforms.device import Device
    from tenon_triton.attention.long_prompts import LongPrompts

    from .persistent_mlp import PersistentMLP
    from .prompt_choice import PromptLibraries
    from .warpgroup_gated import WarpgroupGated

LOG = logging.getLogger(__name__)
PRIORITY = 10
MANY, FEW = "on warp groups", "in one launch where they fill the device"
LIBRARY_FEATURES = attention.FEATURES - {"attention.sinks"}
ASYNC_COPIES_FROM = (8, 0)
DEFAULT_SHARED_BYTES = 48 << 10  # where torch does not tell: what every card grants


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


def register(
    table: OpTable,
    device: Device,
    facts: DeviceFacts,
    settings: CUDAOptions,
    *,
    long_prompts: LongPrompts | None = None,
    libraries: PromptLibraries | None = None,
    gated_rows: WarpgroupGated | None = None,
    gated_tokens: PersistentMLP | None = None,
) -> None:
    """Offer them all. Raises `PluginError` where an offer's name is taken.

    long_prompts: kernels of our own for them. libraries: those of others, asked first. gated_rows: of gated
    MLPs; gated_tokens: of the same with few tokens.
    """
    head = LinearPolicy(
        float8=facts.fp8, shared_bytes=facts.shared_bytes
    )  # never quantized by us: its error is a logit's
    layers = replace(head, online_float8=settings.quantize == "fp8")

    def paged(spec: AttentionSpec, prompts: LongPrompts | None = long_prompts) -> Kernel | No:
        return attention.paged_attention(
            spec, device, facts, batch_invariant=table.batch_invariant, long_prompts=prompts
        )

    def by_libraries(spec: AttentionSpec, asked: PromptLibraries) -> Kernel | No:
        if table.batch_invariant:
            return No("a library's sums depend on the batch")
        chosen = asked.prompts(spec, long_prompts)
        kernel = chosen if isinstance(chosen, No) else paged(spec, chosen)
        if isinstance(chosen, No) or isinstance(kernel, No):
            return kernel
        return replace(kernel, name=f"triton.paged, prompts by {' or '.join(chosen.libraries)}")

    if table.batch_invariant and settings.attention in LIBRARIES:
        LOG.warning("cuda.attention=%s: batch-invariant kernels are asked for, no library's are", settings.attention)
    if libraries is not None:
        name, ask = "triton.paged, prompts by libraries", partial(by_libraries, asked=libraries)
        table.offer(AttentionSpec, name, ask, features=LIBRARY_FEATURES, priority=PRIORITY + 1)
    table.offer(AttentionSpec, "triton.paged", paged, features=attention.FEATURES, priority=PRIORITY)
    if gated_rows is not None:
        _offer_gated_rows(table, layers, gated_rows, gated_tokens)
    offers.register(table, layers, head=head, priority=PRIORITY)


def _offer_gated_rows(
    table: OpTable, policy: LinearPolicy, many: WarpgroupGated, few: PersistentMLP | None = None
) -> None:
    """Gated MLPs, alone and behind their norm, whose many rows go through `many`, and few through `few`: before the
    library's plain ones.
    """

    also = "" if few is None or few.counter is None else f", few {FEW}"

    def named(kernel: Kernel | No) -> Kernel | No:
        return kernel if isinstance(kernel, No) else replace(kernel, name=f"{kernel.name}, many rows {MANY}{also}")

    def refused(spec: GatedMLPSpec) -> No | None:
        float8 = policy.is_float8(spec.gate_up)
        if float8 != policy.is_float8(spec.down):
            return No("takes both weights in FP8 or none")
        return many.refused(spec, float8=float8)

    def gated(spec: GatedMLPSpec) -> Kernel | No:
        return refused(spec) or named(gated_mlp.gated_mlp(spec, policy, many, few))

    def normed_gated(spec: AddRMSNormThenSpec) -> Kernel | No:
        if not isinstance(spec.then, GatedMLPSpec):
            return No("what follows the norm is no gated MLP")
        return refused(spec.then) or named(normed.add_rms_norm_then(spec, policy, many, few))

    table.offer(GatedMLPSpec, f"triton.gated_mlp, many rows {MANY}", gated, priority=PRIORITY + 1)
    name = f"triton.add_rms_norm_then, many rows {MANY}"
    table.offer(AddRMSNormThenSpec, name, normed_gated, features=offers.NORM, priority=PRIORITY + 1)
