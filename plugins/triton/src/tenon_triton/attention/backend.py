"""`TritonAttention`: the contract's attention backend on this family of kernels.

A decode step is one launch (two without joining), anything else one launch for its decodes and one for its prefills.
Nothing is planned on the host but which of them: kernels read rows, lengths and block tables of the step's inputs, so a
plan is views of these, and a captured step serves every length. One with prompts is captured for any number of decodes
in front of them: both launches are made for all rows, and each finds on the device which are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend, GraphSupport
from tenon_platforms.batch import AttentionBatch, GQAInputs
from tenon_platforms.torch_dtypes import to_torch

from ..facts import DeviceFacts
from . import kv_cache
from .configs import AttentionConfigs, attention_configs, max_parts
from .launch import Context, Workspace, launch_decode, launch_prefill

if TYPE_CHECKING:
    from tenon_platforms.device import Device
    from tenon_platforms.ops.attention import AttentionSpec

    from .long_prompts import LongPrompts, PromptsPlan

KERNEL_BLOCK = 16
PREFERRED_BLOCK = 64
SHORT_QUERY_ROWS = 32  # rows of a block beyond which most of a short block would be lost


@dataclass(slots=True, kw_only=True)
class TritonPlan:
    """One step's attention.

    num_decodes: rows at the front that go through the decode kernel, in at most `parts` parts; where the context says
    `decodes_apart`, those of them that are decodes. num_rows: all rows, padding included. is_short: no other row has
    more tokens than fit a short block. prompts: the platform's plan of these rows, where it takes them. has_holes: some
    tokens belong to no row.
    """

    context: Context
    num_decodes: int
    num_rows: int
    num_tokens: int
    parts: int
    is_short: bool
    prompts: PromptsPlan | None
    has_holes: bool


class TritonAttention(AttentionBackend):
    """Grouped-query attention over `kv_cache`: causal or not, sliding window, soft cap, sinks.

    batch_invariant: every row goes through the prefill kernel with one tile, so that a token's sums are taken in the
    same order whatever else is in the batch and however its prompt was cut.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        device: Device,
        facts: DeviceFacts,
        *,
        batch_invariant: bool = False,
        kernel_block: int = KERNEL_BLOCK,
        preferred_block: int = PREFERRED_BLOCK,
        configs: AttentionConfigs | None = None,
        long_prompts: LongPrompts | None = None,
    ) -> None:
        self.spec = spec
        self.device = device
        self.facts = facts
        self.batch_invariant = batch_invariant
        self.long_prompts = None if batch_invariant else long_prompts
        self.graph_support = GraphSupport.ALWAYS if self.long_prompts is None else self.long_prompts.graph_support
        self.needs_exact_host_lengths = self.long_prompts is not None and self.long_prompts.needs_exact_host_lengths
        self.layout = kv_cache.kv_layout(spec.num_kv_heads, spec.head_dim, spec.kv_dtype, kernel_block, preferred_block)
        self.group = spec.num_heads // spec.num_kv_heads
        self.configs = configs or attention_configs(
            spec.head_dim, self.group, spec.kv_dtype.num_bytes, to_torch(spec.dtype).itemsize, facts
        )
        self._workspace = self._make_workspace()
        self._is_warm = False

    # the cache

    def allocate(self, num_blocks: int, block_size: int, num_layers: int) -> list[Tensor]:
        return kv_cache.allocate(self.device, self.layout, num_blocks, block_size, num_layers)

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        kv_cache.write(key, value, cache, slots)

    def copy_blocks(self, caches: list[Tensor], source: Tensor, target: Tensor) -> None:
        kv_cache.copy_blocks(caches, source, target)

    def export_blocks(self, cache: Tensor, blocks: Tensor) -> Tensor:
        return kv_cache.export_blocks(cache, blocks)

    def import_blocks(self, cache: Tensor, blocks: Tensor, canonical: Tensor) -> None:
        kv_cache.import_blocks(cache, blocks, canonical)

    # once a step

    def plan(self, batch: AttentionBatch) -> TritonPlan:
        key, host = batch.key, batch.host
        if not self._is_warm:  # at the first plan of any kind, which is made before the engine is ready
            self._is_warm = True
            if self.long_prompts is not None and self.long_prompts.takes(self.spec, batch.block_size):
                self.long_prompts.warm(self.spec, batch.block_size)
        decodes, apart = self._decodes(batch)
        config = self.configs.decode_for(decodes, self.spec.num_kv_heads, self.facts)
        parts = max_parts(decodes, self.spec.num_kv_heads, config, self.facts) if decodes else 1
        rest = host.query_lens[decodes:] if not key.static else host.query_lens[:0]
        longest = key.max_query if key.static else int(rest.max(initial=0))
        is_short = longest * self.group <= SHORT_QUERY_ROWS and not self.batch_invariant
        first_row = 0 if apart else decodes
        has_prompts = key.rows > first_row and not is_short
        return TritonPlan(
            context=_context(batch, decodes_apart=apart),
            num_decodes=decodes,
            num_rows=key.rows,
            num_tokens=key.tokens,
            parts=parts,
            is_short=is_short,
            prompts=self._plan_prompts(batch, first_row) if has_prompts else None,
            has_holes=(key.static and not key.is_decode) or host.num_tokens < key.tokens,
        )

    def update(self, plan: TritonPlan, batch: AttentionBatch) -> TritonPlan:
        """A static key's tensors stay; where they were made anew, so are captures."""
        plan.context = _context(batch, decodes_apart=plan.context.decodes_apart)
        return plan

    def _decodes(self, batch: AttentionBatch) -> tuple[int, bool]:
        """How many rows at the front go through the decode kernel, and whether only those that prove to be decodes."""
        key = batch.key
        if self.batch_invariant:
            return 0, False
        if key.is_decode:
            return key.rows, False  # padding rows are decodes of the null block
        if not key.static:
            return batch.host.num_decodes, False
        return (key.rows, True) if key.rows > 1 else (0, False)  # a step with a prompt that has one row has no decode

    def _plan_prompts(self, batch: AttentionBatch, first_row: int) -> PromptsPlan | None:
        if self.long_prompts is None or not self.long_prompts.takes(self.spec, batch.block_size):
            return None
        return self.long_prompts.plan(batch, first_row, self.spec)

    @property
    def workspace_bytes(self) -> int:
        """Bytes held beside the cache."""
        own = sum(part.nbytes for part in (self._workspace.mixed, self._workspace.log, self._workspace.arrivals))
        return own + (0 if self.long_prompts is None else self.long_prompts.workspace_bytes)

    def _make_workspace(self) -> Workspace:
        """For any key: parts are only added while rows x kv heads x parts is below the wanted number of programs."""
        programs = max(config.programs_per_unit for config in self.configs.decodes) * self.facts.compute_units
        heads = programs * self.group
        return Workspace(
            mixed=self.device.zeros((heads * self.spec.head_dim,), torch.float32),
            log=self.device.zeros((heads,), torch.float32),
            arrivals=self.device.zeros((programs,), torch.int32),
        )

    # once a layer

    def run(self, inputs: GQAInputs, plan: TritonPlan) -> Tensor:
        query, spec = inputs.query, self.spec
        make = torch.zeros if plan.has_holes else torch.empty
        output = make(query.shape, dtype=query.dtype, device=query.device)
        if plan.num_decodes:
            launch_decode(
                output,
                query,
                inputs.cache,
                inputs.sinks,
                plan.context,
                plan.num_decodes,
                plan.parts,
                self._workspace,
                spec,
                self.configs.decode_for(plan.num_decodes, spec.num_kv_heads, self.facts),
            )
        first_row = 0 if plan.context.decodes_apart else plan.num_decodes
        if plan.prompts is not None:
            plan.prompts.run(output, query, inputs.cache, plan.context)
        elif plan.num_rows > first_row:
            rows, num_tokens = plan.num_rows - first_row, plan.num_tokens - first_row
            config = self.configs.short if plan.is_short else self.configs.long
            launch_prefill(
                output, query, inputs.cache, inputs.sinks, plan.context, rows, first_row, num_tokens, spec, config
            )
        return output


def _context(batch: AttentionBatch, *, decodes_apart: bool) -> Context:
    return Context(
        block_table=batch.block_table,
        rows=batch.rows,
        query_starts=batch.query_starts,
        seq_lens=batch.seq_lens,
        block_size=batch.block_size,
        decodes_apart=decodes_apart,
    )
