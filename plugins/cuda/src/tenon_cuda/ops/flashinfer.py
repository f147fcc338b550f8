"""Prompts through FlashInfer (Ye et al. 2025, arXiv 2501.01005), on the cache as it lies: its "HND" pages are ours.

    cache [blocks, 2, kv heads, block_size, head_dim]

It plans a step on the host, from exact lengths, and copies the plan to the device from pinned memory. A plan keeps the
wrapper that holds it until nobody runs it any more: steps overlap, and one step plans every group of layers. A wrapper
whose last copy still waits in the queue is waited for before it is planned anew.
Its kernels are compiled by nvcc when they are first loaded, minutes where no flashinfer-jit-cache is installed.
"""

from __future__ import annotations

import importlib
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tenon_platforms.attention import GraphSupport
from tenon_platforms.errors import PluginError
from tenon_platforms.kernel import No
from tenon_platforms.torch_dtypes import to_torch

from .installed import Library
from .prompt_rows import Ints, PromptRows, cumulated, refusal

if TYPE_CHECKING:
    from tenon_platforms.batch import AttentionBatch
    from tenon_platforms.device import Device, Event
    from tenon_platforms.ops.attention import AttentionSpec
    from tenon_triton.attention.launch import Context

    from ..capabilities import Arch

LIBRARY = Library(distribution="flashinfer-python", module="flashinfer", versions=">=0.6,<0.7")
HEAD_DIMS = (64, 128, 256)
ARCH_FROM = (8, 0)
TILE = 128  # query tokens x heads of a group in one program of its "fa2" kernels
PROGRAMS_PER_UNIT = 2  # it cuts contexts until there are so many
READY = 2  # wrappers made ahead: one step's plan while the next is made; more groups of layers make more
PLAN_BYTES = 8 << 20  # of device memory that a wrapper keeps its plan in
LEAST_WORKSPACE = 1 << 20


def unavailable(arch: Arch) -> No | None:
    """Why it serves nothing here, or None."""
    if (arch.major, arch.minor) < ARCH_FROM:
        return No(f"needs sm_80 or newer, this GPU is {arch}")
    return LIBRARY.missing()


def refused(spec: AttentionSpec, arch: Arch) -> No | None:
    """Why it does not serve this here, or None."""
    return unavailable(arch) or refusal(spec, HEAD_DIMS)


def partials_bytes(spec: AttentionSpec, arch: Arch, compute_units: int) -> int:
    """Of partial results, float32 values and one logarithm a head: what its "fa2" planner asks for at most.

    Its Hopper kernels cut no context.
    """
    if _kernels(arch) == "fa3":
        return LEAST_WORKSPACE
    group = spec.num_heads // spec.num_kv_heads
    return PROGRAMS_PER_UNIT * compute_units * group * TILE * (spec.head_dim + 1) * 4 + LEAST_WORKSPACE


def _kernels(arch: Arch) -> str:
    return "fa3" if (arch.major, arch.minor) == (9, 0) else "fa2"


@dataclass(slots=True)
class Slot:
    """A wrapper, and the copy of its last plan."""

    wrapper: Any
    copy: Event | None = None


@dataclass(kw_only=True)  # without slots: the end of its life gives the wrapper back
class FlashInferPlan:
    """One step's prompts, planned in `wrapper`."""

    wrapper: Any
    rows: PromptRows

    def run(self, output: Tensor, query: Tensor, cache: Tensor, context: Context) -> None:
        tokens = slice(self.rows.first_token, self.rows.end_token)
        # no programmatic launch: not all of its kernels wait for what came before
        self.wrapper.run(query[tokens], cache, out=output[tokens], enable_pdl=False)


@dataclass(slots=True, kw_only=True)
class FlashInferPrompts:
    """`tenon_triton.attention.LongPrompts` for one spec. Made without importing the library, which `warm` does."""

    spec: AttentionSpec
    device: Device
    arch: Arch
    compute_units: int
    _space: Tensor = field(init=False)  # used by one launch after the other
    _library: Any = field(default=None, init=False)
    _free: list[Slot] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._space = self.device.zeros((partials_bytes(self.spec, self.arch, self.compute_units),), torch.uint8)

    @property
    def graph_support(self) -> GraphSupport:
        return GraphSupport.SINGLE_TOKEN_DECODE  # what its plans hold is the host's

    @property
    def needs_exact_host_lengths(self) -> bool:
        return True

    @property
    def workspace_bytes(self) -> int:
        return self._space.nbytes + READY * PLAN_BYTES

    def takes(self, spec: AttentionSpec, block_size: int) -> bool:
        return spec == self.spec

    def warm(self, spec: AttentionSpec, block_size: int) -> None:
        """Import it, and compile or load its kernels. Raises `PluginError` where that fails."""
        try:
            self._library = importlib.import_module(LIBRARY.module)
            self._free = [self._made() for _ in range(READY)]
            one = np.ones(1, dtype=np.int32)
            nothing = torch.zeros(1, dtype=torch.int32, device=self.device.torch_device)
            for slot in self._free:
                self._fill(slot, one, one, nothing, block_size)
        except torch.cuda.OutOfMemoryError:
            raise
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            raise PluginError(
                f"{LIBRARY.distribution} does not load its attention kernels: {type(error).__name__}: {error}",
                remedy="install the flashinfer-jit-cache of its version, or nvcc for it to compile them, or pass"
                " --platform-opt cuda.attention=triton",
            ) from error

    def plan(self, batch: AttentionBatch, first_row: int, spec: AttentionSpec) -> FlashInferPlan | None:
        rows = PromptRows.of(batch, first_row)
        if rows is None:
            return None
        blocks = -(-rows.seq_lens // batch.block_size)
        slot = self._free.pop(0) if self._free else self._made()  # the one whose copy is oldest
        plan = FlashInferPlan(wrapper=slot.wrapper, rows=rows)
        weakref.finalize(plan, self._free.append, slot).atexit = False
        self._fill(slot, rows.query_lens, rows.seq_lens, _block_numbers(batch, rows, blocks), batch.block_size)
        return plan

    def _made(self) -> Slot:
        make = self._library.BatchPrefillWithPagedKVCacheWrapper
        return Slot(make(self._space, kv_layout="HND", backend=_kernels(self.arch)))

    def _fill(self, slot: Slot, query_lens: Ints, seq_lens: Ints, blocks: Tensor, block_size: int) -> None:
        """Plan rows of these lengths in a wrapper; their int32 `blocks` follow each other."""
        spec = self.spec
        if slot.copy is not None:
            slot.copy.wait()
        counts = (-(-seq_lens // block_size)).astype(np.int32)
        slot.wrapper.plan(
            torch.from_numpy(cumulated(query_lens)),
            torch.from_numpy(cumulated(counts)),
            blocks,
            torch.from_numpy((seq_lens - (counts - 1) * block_size).astype(np.int32)),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            block_size,
            causal=spec.causal,
            sm_scale=spec.scale,
            window_left=spec.sliding_window - 1 if spec.sliding_window else -1,  # those before a token, it not counted
            logits_soft_cap=spec.soft_cap or None,
            q_data_type=to_torch(spec.dtype),
            kv_data_type=to_torch(spec.kv_dtype),
        )
        slot.copy = self.device.event()


def _block_numbers(batch: AttentionBatch, rows: PromptRows, counts: Ints) -> Tensor:
    """int32 [sum of counts] on the device: the first counts[i] entries of every row's table, gathered there."""
    owner = np.repeat(np.arange(rows.first_row, rows.end_row), counts)
    place = np.arange(len(owner)) - np.repeat(cumulated(counts)[:-1], counts)
    where = torch.from_numpy(np.stack((owner, place))).to(batch.rows.device, non_blocking=True)
    return batch.block_table[batch.rows[where[0]].long(), where[1]]
