"""What stands around the layers, natively: a step's ids and slots, row writes, sampling, log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from tenon_platforms.batch import NUM_ROW_COLUMNS, Logprobs, RowState, SamplingBatch, StepInputs
from tenon_platforms.kernel import Kernel, KernelFlags, No
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec

from ..step_calls import TYPES, kernel

FLAGS = KernelFlags(batch_invariant=True)
KNOWN_COLUMNS = 13  # of a row's parameters; native/src/elementwise/abi/sampling.cpp names them


def prepare_inputs(spec: PrepareInputsSpec) -> Kernel | No:
    """run(inputs, state) -> (token_ids, slots)."""
    sizes = set(spec.block_sizes)
    if len(sizes) != 1:
        return No(f"computes slots of one block size, not of {sorted(sizes)}")
    (block_size,), groups = sizes, len(spec.block_sizes)

    def run(inputs: StepInputs, state: RowState) -> tuple[Tensor, tuple[Tensor, ...]]:
        tokens = inputs.token_ids.shape[0]
        ids = torch.empty((tokens,), dtype=torch.int32)
        slots = torch.empty((groups, tokens), dtype=torch.int32)
        kernel("prepare_inputs")(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            token_rows=inputs.token_rows,
            rows=inputs.rows,
            num_valid=inputs.num_valid,
            last_tokens=state.last_tokens,
            block_tables=state.block_tables,
            ids=ids,
            slots=slots,
            tokens=tokens,
            all_rows=state.block_tables.shape[1],
            blocks=state.block_tables.shape[2],
            groups=groups,
            block_size=block_size,
        )
        return ids, slots.unbind(0)

    return Kernel(name="native", run=run, flags=FLAGS)


def row_writes(spec: RowWritesSpec) -> Kernel:
    """run(state, places, blocks, rows, params) -> None."""

    def run(state: RowState, places: Tensor, blocks: Tensor, rows: Tensor, params: Tensor) -> None:
        scatter = kernel("gather")
        if places.shape[0]:
            scatter(
                source=blocks, target=state.block_tables, index=places, count=places.shape[0], line=4, scatters=True
            )
        if rows.shape[0]:
            line = 4 * NUM_ROW_COLUMNS
            scatter(source=params, target=state.params, index=rows, count=rows.shape[0], line=line, scatters=True)

    return Kernel(
        name="native", run=run, flags=KernelFlags(graph_safe=False, batch_invariant=True, in_place=("state",))
    )


def sampler(spec: SamplerSpec) -> Kernel | No:
    """run(logits, batch) -> tokens, as the reference's."""
    if NUM_ROW_COLUMNS != KNOWN_COLUMNS:
        return No(f"knows {KNOWN_COLUMNS} parameters of a row, not {NUM_ROW_COLUMNS}")

    def run(logits: Tensor, batch: SamplingBatch) -> Tensor:
        mode, logits = batch.mode, logits.contiguous()
        tokens = torch.empty((logits.shape[0],), dtype=torch.int32)
        bits = mode.noise | mode.filters << 1 | mode.penalties << 2 | mode.edits << 3 | mode.grammar << 4
        kernel("sample")(
            logits=logits,
            params=batch.params.contiguous(),
            positions=batch.positions.to(torch.int32).contiguous(),
            counts=batch.counts,
            edits=batch.edits,
            grammar_mask=batch.grammar_mask,
            tokens=tokens,
            rows=logits.shape[0],
            vocab=logits.shape[1],
            mode=bits,
            type=TYPES[logits.dtype],
        )
        return tokens

    return Kernel(name="native", run=run, flags=KernelFlags(batch_invariant=True, in_place=("batch.counts",)))


def token_logprobs(spec: TokenLogprobsSpec) -> Kernel:
    """run(logits, tokens, k) -> Logprobs; of equal ones the lowest ids are the best."""

    def run(logits: Tensor, tokens: Tensor, k: int) -> Logprobs:
        logits, rows = logits.contiguous(), logits.shape[0]
        found = Logprobs(
            chosen=torch.empty((rows,), dtype=torch.float32),
            rank=torch.empty((rows,), dtype=torch.int32),
            top_ids=torch.empty((rows, k), dtype=torch.int32),
            top=torch.empty((rows, k), dtype=torch.float32),
        )
        kernel("token_logprobs")(
            logits=logits,
            tokens=tokens.to(torch.int32).contiguous(),
            chosen=found.chosen,
            rank=found.rank,
            top_ids=found.top_ids,
            top=found.top,
            rows=rows,
            vocab=logits.shape[1],
            k=k,
            type=TYPES[logits.dtype],
        )
        return found

    return Kernel(name="native", run=run, flags=FLAGS)
