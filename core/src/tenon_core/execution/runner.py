"""The runner: takes step deltas, keeps the rows' memory, and launches one executable a step.

It knows shapes, buffers and kernels; it does not know requests, schedules or processes. `launch` returns at once where
the device queues work; `StepHandle.result` waits. A step is *forward* and *sample*, or both fused as *step* where no
row needs the host between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenon_core.models.kv_pools import plan_pools
from tenon_core.models.model import Model, PoolingHead, StepContext
from tenon_platforms.attention import GraphSupport
from tenon_platforms.batch import AttentionBatch, HostBatch, Logprobs, SamplingBatch, StepInputs, StepOutputs
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device
from tenon_platforms.execution import Executable, ExecutableKind, Execution
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import GREEDY, ShapeKey, ShapePolicy

from .delta import NO_COPIES, Int32, StepDelta
from .packing import StepPacker
from .results import ResultReader, StepHandle
from .row_memory import RowMemory

COPY_PIECE = 8  # blocks copied by one launch on a device that compiles
ONTO_ITSELF: Int32 = np.zeros((1, 2), dtype=np.int32)  # the null block
NO_MASK: Int32 = np.zeros((0, 1), dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """Sizes fixed at start-up. depth: steps that may be in flight."""

    max_rows: int
    max_blocks: int
    block_size: int
    num_blocks: int
    depth: int


@dataclass(slots=True, kw_only=True)
class StepCall:
    """What an executable is called with: the step's inputs, each group's plan, and what came in between."""

    inputs: StepInputs
    plans: list[Any]
    logits: Tensor | None = None  # between *forward* and *sample*
    grammar_mask: Tensor | None = None

    @property
    def key(self) -> ShapeKey:
        """The lattice key of the inputs."""
        return self.inputs.key


GrammarMasks = Callable[[], Int32]
"""int32 [logits, ceil(vocab / 32)], as `SamplingBatch.grammar_mask`; the runner pads it."""


class Runner:
    """Runs steps of one model on one device."""

    def __init__(
        self,
        *,
        model: Model,
        table: OpTable,
        device: Device,
        execution: Execution,
        policy: ShapePolicy,
        limits: RunnerLimits,
        collectives: Collectives | None = None,
    ) -> None:
        vocab = model.spec.vocab_size
        strict = policy.strict
        # every token's log-probability is wanted, and every row begins with the end of a prompt
        max_logits = policy.limits.max_tokens + limits.max_rows
        sizes = list(policy.eager_keys())
        self.step = execution.executable(self._step, name="step")
        self.forward = execution.executable(self._forward, name="forward")
        self.sample = execution.executable(self._sample, name="sample")
        self.model = model
        self.policy = policy
        self._device = device
        self._execution = execution
        self._limits = limits
        self._fixed_sizes = strict
        self._is_pooling = isinstance(model.head, PoolingHead)
        self._between_is_warm = False
        self._collectives = collectives or Collectives()
        self._graph_support = _graph_support(model, table, self._collectives)
        self._sampler = table.choose(SamplerSpec(vocab_size=vocab))
        self._logprobs = table.choose(TokenLogprobsSpec(vocab_size=vocab))
        self._prepare = table.choose(PrepareInputsSpec(block_sizes=(limits.block_size,) * len(model.groups)))
        self._rows = RowMemory(
            device=device,
            writes=table.choose(RowWritesSpec(num_groups=len(model.groups))),
            max_rows=limits.max_rows,
            num_groups=len(model.groups),
            max_blocks=limits.max_blocks,
            vocab_size=vocab,
            fixed_slots=strict,
            pad_writes=strict,
            depth=limits.depth + 2,
            grow_once=self.step.kind is not ExecutableKind.EAGER,
        )
        self._num_moves = 0
        self._packer = StepPacker(
            device=device,
            max_tokens=max([policy.limits.max_tokens, *(key.tokens for key in sizes)]),
            max_rows=max([limits.max_rows, *(key.rows for key in sizes)]),
            max_logits=max([max_logits, *(key.logits for key in sizes)]),
            axes=model.spec.position_axes,
            tables=(len(model.groups), limits.max_rows + 1, limits.max_blocks),
            depth=limits.depth + 2,
            has_segments=model.spec.token_types > 1,
        )
        self._tables = self._rows.state.block_tables.unbind(0)
        self._last_key: tuple[ShapeKey, ShapeKey] | None = None  # (need, key): steady steps ask for the same
        self._plans: dict[ShapeKey, list[Any]] = {}
        self._masks: dict[int, Tensor] = {}  # logits -> grammar mask of static keys
        self._results = ResultReader(device, depth=limits.depth)

    # the hot path

    def launch(self, delta: StepDelta, masks: GrammarMasks | None = None) -> StepHandle:
        """Queue one step and the copy of its results.

        masks: called once *forward* is queued, for the tokens that grammars allow each logit row.
        """
        if delta.block_copies.shape[0]:  # first: rows that are not in this step need them, even if it fails
            self._copy_blocks(delta.block_copies)
        host = _host_batch(delta)
        key = self._key(_need(delta, host))
        carried = self._packer.carries_writes(delta, key)
        self._rows.apply(delta, step_carries_writes=carried)
        if self._rows.num_moves != self._num_moves:
            self._forget_captures()
        inputs = self._packer.pack(delta, key, host)
        if carried and delta.block_writes.shape[0]:
            self._rows.write_blocks(inputs.write_places, inputs.write_blocks)
        call = StepCall(inputs=inputs, plans=self._plan(key, inputs))
        if masks is None:
            outputs: StepOutputs = self.step.run(key, call)
        else:
            call.logits = self.forward.run(key, call)
            call.grammar_mask = self._mask_to_device(key, masks())
            outputs = self.sample.run(key, call)
        return self._results.handle(outputs, host.num_logits)

    def prepare(self, key: ShapeKey) -> None:
        """Compile or capture what a step of this key launches, and run it once on dummy rows.

        A key that the step's kernels cannot be captured for is left to run eagerly, one that no step will have is left
        out: a pooling model neither decodes nor samples.
        """
        if not self._serves(key):
            return
        if self._fixed_sizes and not self._between_is_warm:
            self._between_is_warm = True
            self._rows.warm()
            self._copy_blocks(NO_COPIES)
        key, call = self._dummy_step(key)
        self.step.prepare(key, call)
        if key.mode.grammar:
            self.forward.prepare(key, call)
            call.logits = self.forward.run(key, call)
            call.grammar_mask = self._mask_to_device(key, NO_MASK)
            self.sample.prepare(key, call)
        self._device.synchronize()

    def compile_ahead(self, keys: Iterable[ShapeKey]) -> None:
        """Let the step's executable compile what steps of `keys` launch, before they are prepared one by one."""
        self.step.compile_ahead(self._dummy_steps(keys))
        self._copy_blocks(ONTO_ITSELF)  # launched: no step has it before the first fork of a row

    def _dummy_steps(self, keys: Iterable[ShapeKey]) -> Iterator[tuple[ShapeKey, StepCall]]:
        for key in filter(self._serves, keys):
            yield self._dummy_step(key)
            self._device.synchronize()  # the next one is packed where this one was copied from

    def _dummy_step(self, key: ShapeKey) -> tuple[ShapeKey, StepCall]:
        """A step of dummy rows, and its key: as given, or what so many tokens need where that has no fixed sizes."""
        delta = _dummy_delta(key, self._limits.max_rows, self._limits.max_blocks * self._limits.block_size)
        host = _host_batch(delta)
        key = key if key.static else _need(delta, host)
        inputs = self._packer.pack(delta, key, host)
        if key.static:
            self._rows.write_blocks(inputs.write_places, inputs.write_blocks)  # all padding: the dummy row's
        return key, StepCall(inputs=inputs, plans=self._plan(key, inputs))

    def _serves(self, key: ShapeKey) -> bool:
        """Whether a step of this key can be prepared, and the model has such steps."""
        return self._can_prepare(key) and not (self._is_pooling and (key.is_decode or key.mode != GREEDY))

    def _forget_captures(self) -> None:
        """A table of the rows' state has grown into another tensor, which captures do not read: capture anew."""
        if self.step.kind is not ExecutableKind.EAGER:
            self._device.synchronize()  # what is in flight may be a replay
            self.release()
        self._num_moves = self._rows.num_moves

    def release(self) -> None:
        """Give back executables; the model and its caches go with the runner."""
        for executable in self.executables:
            executable.release()

    @property
    def executables(self) -> tuple[Executable, ...]:
        """All of them, for counting compiles."""
        return (self.step, self.forward, self.sample)

    @property
    def num_compiles(self) -> int:
        """Compilations so far, of all executables and of kernels between steps."""
        return sum(executable.num_compiles for executable in self.executables) + self._execution.num_compiles

    def _key(self, need: ShapeKey) -> ShapeKey:
        if self._last_key is None or self._last_key[0] != need:
            key = self.policy.key(need)
            self._last_key = (need, key if self._can_prepare(key) else need)
        return self._last_key[1]

    def _can_prepare(self, key: ShapeKey) -> bool:
        """Whether a key's executable may be captured: the least that any kernel of the step supports decides."""
        if self.step.kind is not ExecutableKind.CAPTURE or not key.static:
            return True
        return self._graph_support >= (GraphSupport.SINGLE_TOKEN_DECODE if key.is_decode else GraphSupport.ALWAYS)

    def _plan(self, key: ShapeKey, inputs: StepInputs) -> list[Any]:
        batches = [
            AttentionBatch(
                block_table=block_table,
                block_size=self._limits.block_size,
                rows=inputs.rows,
                query_starts=inputs.query_starts,
                seq_lens=inputs.seq_lens,
                token_rows=inputs.token_rows,
                positions=inputs.positions,
                num_valid=inputs.num_valid,
                key=key,
                host=inputs.host,
            )
            for block_table in self._tables
        ]
        backends = [group.backend for group in self.model.groups]
        known = self._plans.get(key) if key.static else None
        if known is None:
            plans = [backend.plan(batch) for backend, batch in zip(backends, batches, strict=True)]
        else:
            plans = [backend.update(plan, batch) for backend, plan, batch in zip(backends, known, batches, strict=True)]
        if key.static:
            self._plans[key] = plans
        return plans

    def _to_device(self, array: Int32) -> Tensor:
        staged = self._device.host_buffer(array.shape, torch.int32)
        staged.numpy()[:] = array
        target = self._device.empty(array.shape, torch.int32)
        self._device.copy(target, staged)
        return target

    def _mask_to_device(self, key: ShapeKey, mask: Int32) -> Tensor:
        """The grammar mask padded to the key's logits, all allowed; for a static key always the same tensor."""
        width = -(-self.model.spec.vocab_size // 32)
        staged = self._device.host_buffer((key.logits, width), torch.int32)
        staged.fill_(-1)
        staged.numpy()[: len(mask)] = mask if len(mask) else -1
        target = self._masks.get(key.logits) if key.static else None
        if target is None:
            target = self._device.empty((key.logits, width), torch.int32)
            if key.static:
                self._masks[key.logits] = target
        self._device.copy(target, staged)
        return target

    def _copy_blocks(self, pairs: Int32) -> None:
        """Copy blocks; a compiling device gets them in pieces of one size, padded with the null block onto itself."""
        pieces = [pairs]
        if self._fixed_sizes:
            padded = np.zeros((max(-(-len(pairs) // COPY_PIECE), 1) * COPY_PIECE, 2), dtype=np.int32)
            padded[: len(pairs)] = pairs
            pieces = np.split(padded, len(padded) // COPY_PIECE)
        for piece in pieces:
            sources, targets = self._to_device(piece.T)  # each contiguous
            for pool in plan_pools(self.model.groups):
                pool.backend.copy_blocks(pool.caches(self.model.caches), sources, targets)

    # what the executables run

    def _forward(self, call: StepCall) -> Tensor:
        inputs = call.inputs
        token_ids, slots = self._prepare.run(inputs, self._rows.state)
        context = StepContext(positions=inputs.positions, slots=slots, plans=call.plans, caches=self.model.caches)
        if isinstance(self.model.head, PoolingHead):
            return self.model.head(self.model.forward(token_ids, context), inputs)
        if 0 < call.key.logits < call.key.tokens:
            context.wanted = inputs.logit_index
        hidden = self.model.forward(token_ids, context)
        return self.model.logits(hidden if context.wanted is not None else hidden.index_select(0, inputs.logit_index))

    def _sample(self, call: StepCall, logits: Tensor | None = None) -> StepOutputs:
        inputs, state, mode = call.inputs, self._rows.state, call.inputs.key.mode
        logits = call.logits if logits is None else logits
        assert logits is not None, "sample runs after forward"
        batch = SamplingBatch(
            mode=mode,
            positions=inputs.positions[0].index_select(0, inputs.logit_index) + 1,
            params=state.params.index_select(0, inputs.logit_rows),
            counts=state.counts,
            edits=state.edits,
            grammar_mask=call.grammar_mask,
        )
        tokens: Tensor = self._sampler.run(logits, batch)  # int32 [logits]
        if self._collectives.size > 1:
            tokens = self._collectives.broadcast(tokens)  # the first rank alone knows grammars
        state.last_tokens[inputs.logit_rows] = tokens
        logprobs: Logprobs | None = None
        if mode.num_logprobs >= 0:
            wanted = torch.where(inputs.targets < 0, tokens, inputs.targets)
            logprobs = self._logprobs.run(logits, wanted, mode.num_logprobs)
        return StepOutputs(tokens=tokens[:, None], logprobs=logprobs)

    def _step(self, call: StepCall) -> StepOutputs:
        if isinstance(self.model.head, PoolingHead):
            return StepOutputs(tokens=call.inputs.logit_index[:, None] * 0, hidden=self._forward(call))
        return self._sample(call, self._forward(call))


def _graph_support(model: Model, table: OpTable, collectives: Collectives) -> GraphSupport:
    if collectives.size > 1 and not collectives.flags.graph_safe:
        return GraphSupport.NEVER
    inside = [choice for choice in table.choices if choice.spec.op != RowWritesSpec.op]
    if not all(choice.kernel.flags.graph_safe for choice in inside):
        return GraphSupport.NEVER
    return min((group.backend.graph_support for group in model.groups), default=GraphSupport.ALWAYS)


def _host_batch(delta: StepDelta) -> HostBatch:
    seq_lens = delta.starts + delta.num_tokens
    num_rows = len(delta.rows)
    sampled = num_rows if delta.sample_rows is None else len(delta.sample_rows)
    decodes_only = delta.num_decodes == num_rows
    return HostBatch(
        num_tokens=delta.num_decodes + len(delta.token_ids),
        num_rows=num_rows,
        num_logits=sampled + len(delta.prompt_targets),
        num_decodes=delta.num_decodes,
        query_lens=delta.num_tokens,
        seq_lens=seq_lens,
        max_query=1 if decodes_only else int(delta.num_tokens.max()),
        max_seq=int(seq_lens.max()),
    )


def _need(delta: StepDelta, host: HostBatch) -> ShapeKey:
    return ShapeKey(
        tokens=host.num_tokens,
        rows=host.num_rows,
        logits=host.num_logits,
        max_query=host.max_query if host.num_decodes == host.num_rows else max(host.max_query, 2),
        blocks=delta.max_blocks,
        mode=delta.mode,
    )


def _dummy_delta(key: ShapeKey, dummy_row: int, longest: int) -> StepDelta:
    """A step of only dummy rows that fills `key`: a decode of all rows, or as few prefills as hold all tokens.

    Where a static key's rows cannot hold them all, the rest is padding; one without fixed sizes takes more rows.
    """
    decode = key.is_decode
    most = key.rows if key.static else dummy_row  # the dummy row's number is how many others there are
    count = key.rows if decode else min(-(-key.tokens // longest), most)
    tokens = min(key.tokens, count * longest)
    sizes = np.full(count, tokens // count, dtype=np.int32)
    sizes[: tokens % count] += 1
    return StepDelta(
        step=-1,
        rows=np.full(count, dummy_row, dtype=np.int32),
        starts=np.zeros(count, dtype=np.int32),
        num_tokens=np.ones(count, dtype=np.int32) if decode else sizes,
        num_decodes=count if decode else 0,
        max_blocks=1,
        mode=key.mode,
        token_ids=np.zeros(0 if decode else tokens, dtype=np.int32),
    )
