"""Captured steps with prompts on the card: their attention, replayed for other batches than it was recorded with.

Hopper's kernel for prompts runs nowhere else, and no interpreter runs it. `PaddedCUDA` is what whole engines are
compared with: steps padded to the same keys, launched kernel by kernel, so that every bit must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenon_cuda.capabilities import Arch
from tenon_cuda.execution import CUDAExecution
from tenon_cuda.graphs import GraphPool, GraphRecorder, Recorder
from tenon_cuda.ops.triton_offers import device_facts
from tenon_cuda.ops.warpgroups import PAGE, WarpgroupPrompts
from tenon_cuda.platform import CUDAPlatform
from tenon_platforms.attention import AttentionBackend, AttentionKernel
from tenon_platforms.batch import AttentionBatch, GQAInputs, HostBatch
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import EagerExecutable, Executable, ExecutableKind, Execution
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.shapes import ShapeKey
from tenon_platforms.torch_dtypes import to_torch
from tenon_triton.attention.offer import paged_attention

Rows = tuple[tuple[int, int], ...]  # of each: tokens of the step, and length with them
BATCHES: tuple[Rows, ...] = (
    ((200, 900), (40, 40)),
    ((1, 3000), (1, 65), (1, 1), (120, 500), (70, 2048)),
    ((1, 64), (1, 129), (9, 20), (1, 700), (100, 1100)),  # one token, but no decode in front of all prompts
    ((2, 2),),
    ((177, 3000),),
    (*((1, 4000),) * 7, (249, 249)),
)
MOST_TOKENS, MOST_ROWS, MOST_LENGTH = 256, 8, 4096
PLAIN = AttentionSpec(
    num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)
WINDOW = AttentionSpec(
    num_heads=16, num_kv_heads=8, head_dim=128, scale=128**-0.5, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16,
    sliding_window=300,
)  # fmt: skip
TOLERANCE = 0.02  # of values around 1, of two orders of sums in bfloat16


class PaddedExecutable(EagerExecutable):
    """Counts as captured, so that the same keys are asked for."""

    kind = ExecutableKind.CAPTURE


class PaddedExecution(CUDAExecution):
    """Records nothing."""

    def executable(self, fn: Callable[[Any], Any], *, name: str) -> Executable:
        return PaddedExecutable(fn)


class PaddedCUDA(CUDAPlatform):
    """The same steps, padded as captured ones are, launched kernel by kernel."""

    def execution(self, device: Any) -> Execution:
        return PaddedExecution(device, self.settings, memory=device.memory().total)


def captured_attention(device: Any) -> str:
    """One recording serves every batch of its key: as eager attention of exactly that batch by the plain kernels."""
    arch = Arch.of(device)
    facts = device_facts(device, arch)
    takers = []
    with device.inference_context():
        for spec in (PLAIN, WINDOW):
            prompts = WarpgroupPrompts(arch)
            takers.append("warp groups" if prompts.takes(spec, PAGE) else "plain")
            kernels = [paged_attention(spec, device, facts, long_prompts=long) for long in (prompts, None)]
            ours, plain = (kernel.backend for kernel in kernels if isinstance(kernel, AttentionKernel))
            for rows in (MOST_ROWS, 1):
                batches = [batch for batch in BATCHES if len(batch) <= rows]
                replayed(ours, plain, GraphRecorder(GraphPool()), spec, batches, rows)
            device.synchronize()
    return f"{len(BATCHES)} batches through {' and '.join(takers)}"


def replayed(
    ours: AttentionBackend,
    plain: AttentionBackend,
    recorder: Recorder,
    spec: AttentionSpec,
    batches: list[Rows],
    most_rows: int,
) -> None:
    """Records attention at a key with the first batch and replays it with each; raises where one differs."""
    cache = ours.allocate(1 + MOST_ROWS * MOST_LENGTH // PAGE, PAGE, 1)[0].normal_()
    table = torch.zeros((MOST_ROWS + 1, MOST_LENGTH // PAGE), dtype=torch.int32)  # the last row is the dummy row
    table[:-1] = 1 + torch.randperm(table[:-1].numel()).view(MOST_ROWS, -1).int()
    table = table.to(cache.device)
    shape = (MOST_TOKENS, spec.num_heads, spec.head_dim)
    query = torch.randn(shape, device=cache.device).to(to_torch(spec.dtype))
    key = ShapeKey(tokens=MOST_TOKENS, rows=most_rows, logits=most_rows, max_query=MOST_TOKENS, blocks=0, static=True)
    first = index_arrays(batches[0], key.rows)
    static = {name: torch.from_numpy(array).to(cache.device) for name, array in first.items()}
    graph = plan = output = None
    for rows in batches:
        for name, array in index_arrays(rows, key.rows).items():
            static[name].copy_(torch.from_numpy(array))
        query.normal_()
        batch = batch_of(static, rows, key, table)
        if graph is None:
            plan, inputs = ours.plan(batch), GQAInputs(query=query, cache=cache)
            ours.run(inputs, plan)  # compiles
            graph, output = recorder.record(lambda _, made=plan, given=inputs: ours.run(given, made), None)
        else:
            ours.update(plan, batch)
        graph.replay()
        tokens, found = sum(count for count, _ in rows), output
        assert found is not None and bool(found.isfinite().all()), f"padding is not finite beside {rows}"
        expected = plain.run(GQAInputs(query=query[:tokens], cache=cache), plain.plan(exact(rows, table)))
        torch.testing.assert_close(found[:tokens], expected, atol=TOLERANCE, rtol=TOLERANCE)
    recorder.forget(graph)


def index_arrays(rows: Rows, padded: int) -> dict[str, Any]:
    """int32 index arrays of a step of these rows, padded to so many as the engine pads them."""
    counts = np.array([count for count, _ in rows], dtype=np.int32)
    starts = np.full(padded + 1, counts.sum(), dtype=np.int32)
    starts[: len(rows) + 1] = np.concatenate(([0], np.cumsum(counts)))
    ids, lengths = np.full(padded, MOST_ROWS, dtype=np.int32), np.ones(padded, dtype=np.int32)
    ids[: len(rows)] = np.arange(len(rows))
    lengths[: len(rows)] = [length for _, length in rows]
    valid = np.array([counts.sum(), len(rows), len(rows)], dtype=np.int32)
    return {"rows": ids, "query_starts": starts, "seq_lens": lengths, "num_valid": valid}


def exact(rows: Rows, table: Tensor) -> AttentionBatch:
    """The same step without padding, as it runs eagerly."""
    tokens = sum(count for count, _ in rows)
    longest = max(count for count, _ in rows)
    key = ShapeKey(tokens=tokens, rows=len(rows), logits=len(rows), max_query=max(longest, 2), blocks=0)
    arrays = {name: torch.from_numpy(a).to(table.device) for name, a in index_arrays(rows, len(rows)).items()}
    return batch_of(arrays, rows, key, table)


def batch_of(tensors: dict[str, Tensor], rows: Rows, key: ShapeKey, table: Tensor) -> AttentionBatch:
    """What a plan is made of."""
    counts = [count for count, _ in rows]
    lengths = [length for _, length in rows]
    nothing = torch.zeros(0, dtype=torch.int32, device=table.device)  # no plan of ours looks at these
    return AttentionBatch(
        block_table=table,
        block_size=PAGE,
        token_rows=nothing,
        positions=nothing,
        key=key,
        host=HostBatch(
            num_tokens=sum(counts),
            num_rows=len(rows),
            num_logits=len(rows),
            num_decodes=next((i for i, count in enumerate(counts) if count > 1), len(rows)),
            query_lens=np.array(counts, dtype=np.int32),
            seq_lens=np.array(lengths, dtype=np.int32),
            max_query=max(counts),
            max_seq=max(lengths),
        ),
        **tensors,
    )
