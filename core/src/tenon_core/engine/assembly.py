"""Assembly: from a platform, a model's spec and its weights to an `Engine` that has not run yet.

Everything is explicit: no discovery, no files. `start.py` finds the platform and the model; tests come in here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tenon_core.config import EngineConfig
from tenon_core.execution.executor import InlineExecutor
from tenon_core.execution.memory import MemoryPlan, activation_bytes, plan_memory
from tenon_core.execution.runner import Runner, RunnerLimits
from tenon_core.hookspecs import BLOCK_ALLOCATORS, SCHEDULERS, load_registered
from tenon_core.models.builder import ModelBuilder
from tenon_core.models.family import WeightNames
from tenon_core.models.heads import HeadChoice
from tenon_core.models.kv_pools import plan_pools
from tenon_core.models.model import Model
from tenon_core.models.sharding import Rank, RankSource, rank_spec
from tenon_core.models.weights import WeightReader, WeightSource
from tenon_core.sampling.pooling import PoolingFacts
from tenon_core.sampling.validate import ModelFacts
from tenon_core.state.rows import RowTable
from tenon_platforms.attention import AttentionBackend
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device, Fault
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import CapacityError, ConfigError, PluginError, TenonError
from tenon_platforms.execution import EngineLimits, ExecutableKind, Execution
from tenon_platforms.model import ModelSpec
from tenon_platforms.ops.rows import RowWritesSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.platform import Platform
from tenon_platforms.pools import Pool
from tenon_platforms.shapes import ShapePolicy

from .block_allocator import BlockAllocator
from .deltas import DeltaBuilder
from .engine import Engine
from .giving_back import GivenBack
from .grammars import Grammars
from .kv_memory import KVMemory
from .outputs import OutputRouter
from .prefix_cache import PrefixCache
from .promises import check_determinism, check_indices, max_blocks_of
from .schedule import Scheduler, SchedulerContext
from .sleep import Sleep

if TYPE_CHECKING:
    from tenon_core.sampling.grammar import Vocabulary

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model to build: its spec, its tensors' names and where they come from.

    tokenizer_json: the tokenizer as `tokenizers` writes it, for grammars; asked for with the first of them.
    """

    name: str
    spec: ModelSpec
    names: WeightNames
    weights: WeightSource
    eos_token_ids: tuple[int, ...]
    tokenizer_json: Callable[[], str] | None = None
    pooling: PoolingFacts | None = None

    def of_rank(self, rank: Rank) -> ModelSource:
        """One rank's part. Raises `ConfigError` where the model cannot be shared so."""
        weights = RankSource.of(self.weights, rank, self.spec, self.names)
        return replace(self, spec=rank_spec(self.spec, rank), weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """An engine and what it was made of, for reports."""

    engine: Engine
    runner: Runner
    model: Model
    table: OpTable
    policy: ShapePolicy
    memory: MemoryPlan
    capabilities: Capabilities
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """A platform's sockets on one device."""

    platform: Platform
    device: Device
    capabilities: Capabilities
    execution: Execution

    @classmethod
    def open(cls, platform: Platform, rank: Rank | None = None) -> Sockets:
        """Open the platform's device, of one of several ranks, and take its sockets."""
        device = platform.device() if rank is None else platform.rank_device(rank.index, rank.size)
        if device.shares_host_memory and device.is_async:
            raise PluginError(
                f"platform {platform.name!r} says of {device.info.name} both `shares_host_memory` and `is_async`: a"
                " step in flight would read what the host writes for the next one",
                remedy="a device whose calls return before their work is done leaves `shares_host_memory` at False",
            )
        device.open()
        with GivenBack(device.close):
            return cls(
                platform=platform,
                device=device,
                capabilities=platform.capabilities(device),
                execution=platform.execution(device),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What makes the parts that configuration names. Third parties register theirs in the same way as we do ours."""

    scheduler: Callable[[SchedulerContext], Scheduler]
    block_allocator: Callable[..., BlockAllocator]

    @classmethod
    def named(cls, config: EngineConfig) -> Parts:
        """Raises `ConfigError` for a name that nobody registered, `PluginError` for one that does not load."""
        return cls(
            scheduler=load_registered(SCHEDULERS, config.scheduler.scheduler),
            block_allocator=load_registered(BLOCK_ALLOCATORS, config.cache.block_allocator),
        )


def assemble(
    config: EngineConfig,
    sockets: Sockets,
    source: ModelSource,
    *,
    dtype: DType,
    kv_dtype: DType,
    max_model_len: int,
    on_read: Callable[[str], None] = lambda name: None,
    make_table: Callable[..., OpTable] = OpTable,
    collectives: Collectives | None = None,
) -> Assembled:
    """Build the model, plan the memory and put the engine together. Raises `TenonError` with a remedy.

    collectives: of the ranks that share the model, each of which assembles its part; None: it is alone.

    make_table: an op table that watches or replaces kernels, for `tenon ops record` and `tenon ops bisect`.
    """
    parts = Parts.named(config)  # before the weights are read
    check_determinism(config, sockets.capabilities, sockets.platform.name)
    collectives = collectives or Collectives()
    if collectives.size > 1:
        source = source.of_rank(Rank(index=collectives.rank, size=collectives.size))
    device, spec = sockets.device, source.spec
    table = make_table(
        platform=sockets.platform.name,
        strict=config.platform.strict_ops,
        batch_invariant=config.platform.batch_invariant,
    )
    sockets.platform.register_ops(table, device)
    reader = WeightReader(source=source.weights, to_device=_mover(device), on_read=on_read)
    pool = device.pool if config.platform.enable_sleep_mode else _no_pool
    with pool(Pool.WEIGHTS):
        model = ModelBuilder(
            spec=spec, names=source.names, table=table, device=device, reader=reader, dtype=dtype, kv_dtype=kv_dtype,
            collectives=collectives,
        ).build()  # fmt: skip
    if left := [name for name in reader.unused() if not _is_derived(name)]:
        LOG.warning("the checkpoint has %d tensors this model does not use: %s", len(left), ", ".join(left[:8]))
    backends = [group.backend for group in model.groups]
    block_size = _block_size(config, backends)
    max_blocks = -(-(max_model_len + 1) // block_size)
    max_rows = config.scheduler.max_num_seqs
    policy = sockets.execution.shape_policy(
        spec,
        EngineLimits(
            max_rows=max_rows,
            max_model_len=max_model_len,
            max_tokens=config.scheduler.max_num_batched_tokens,
            max_blocks=max_blocks,
            chunking=config.scheduler.enable_chunked_prefill and not spec.needs_whole_prompts,
            enforce_eager=config.platform.enforce_eager,
        ),
        sockets.capabilities,
    )
    max_rows = min(max_rows, policy.limits.max_rows)
    if policy.limits.max_tokens < max_rows:
        raise ConfigError(
            f"max_num_batched_tokens is {policy.limits.max_tokens}, less than max_num_seqs ({max_rows}):"
            " every running sequence needs one token a step",
            remedy="raise --max-num-batched-tokens or lower --max-num-seqs",
        )
    if not policy.limits.chunking and policy.limits.max_tokens < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens is {policy.limits.max_tokens}, less than max_model_len ({max_model_len}): without"
            " chunked prefill a sequence that lost its blocks is computed again in one step",
            remedy="raise --max-num-batched-tokens, lower --max-model-len, or leave out --no-enable-chunked-prefill",
        )
    memory = _plan_memory(config, sockets, model, policy, dtype, block_size, max_rows * max_blocks)
    if collectives.size > 1:
        memory = replace(memory, num_blocks=_least(collectives, device, memory.num_blocks))
    check_indices(
        sockets.capabilities,
        num_blocks=memory.num_blocks,
        block_size=block_size,
        max_tokens=policy.limits.max_tokens,
    )
    with pool(Pool.KV_CACHE):
        _allocate_caches(model, device, memory, block_size)
    depth = 1 if config.scheduler.overlap and device.is_async else 0
    runner = Runner(
        model=model,
        table=table,
        device=device,
        execution=sockets.execution,
        policy=policy,
        limits=RunnerLimits(
            max_rows=max_rows,
            max_blocks=max_blocks,
            block_size=block_size,
            num_blocks=memory.num_blocks,
            depth=depth,
        ),
        collectives=collectives,
    )
    _check_traceable(table, sockets, collectives)
    engine = _engine(
        config, parts, sockets, source, runner, policy, memory, block_size, max_blocks, max_model_len, depth
    )
    return Assembled(
        engine=engine,
        runner=runner,
        model=model,
        table=table,
        policy=policy,
        memory=memory,
        capabilities=sockets.capabilities,
        block_size=block_size,
    )


def _no_pool(pool: Pool) -> AbstractContextManager[None]:
    return nullcontext()


def _engine(
    config: EngineConfig,
    parts: Parts,
    sockets: Sockets,
    source: ModelSource,
    runner: Runner,
    policy: ShapePolicy,
    plan: MemoryPlan,
    block_size: int,
    max_blocks: int,
    max_model_len: int,
    depth: int,
) -> Engine:
    groups = runner.model.groups
    max_rows = min(config.scheduler.max_num_seqs, policy.limits.max_rows)
    table = RowTable(max_rows=max_rows, max_len=max_model_len, num_groups=len(groups), max_blocks=max_blocks)
    allocator = parts.block_allocator(num_blocks=plan.num_blocks)
    cache = PrefixCache(
        allocator=allocator,
        block_size=block_size,
        windows=tuple(group.window for group in groups),
        enabled=config.cache.enable_prefix_caching and not source.spec.needs_whole_prompts,
    )
    memory = KVMemory(
        table=table,
        allocator=allocator,
        prefix_cache=cache,
        block_size=block_size,
        max_chunk=policy.limits.max_tokens,
    )
    context = SchedulerContext(table=table, memory=memory, limits=policy.limits)
    scheduler = parts.scheduler(context)
    facts = ModelFacts(
        model=source.name,
        vocab_size=source.spec.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=source.eos_token_ids,
        max_num_seqs=max_rows,
        block_size=block_size,
        num_blocks=plan.num_blocks,
        max_resident_tokens=_longest_resident(memory, plan.num_blocks, max_model_len),
        max_prompt_len=0 if policy.limits.chunking else policy.limits.max_tokens,
        platform=sockets.platform.name,
        refused_features=dict(sockets.capabilities.refused),
        pooling=source.pooling,
    )
    if config.model.max_model_len is not None and facts.max_resident_tokens < max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}, but the KV cache holds {facts.max_resident_tokens} tokens"
            f" ({plan.num_blocks} blocks)",
            remedy=f"pass --max-model-len {facts.max_resident_tokens}, or give the KV cache more memory"
            " (--kv-cache-memory, --memory-utilization)",
        )
    return Engine(
        facts=facts,
        table=table,
        memory=memory,
        scheduler=scheduler,
        executor=InlineExecutor(runner, sockets.device),
        deltas=DeltaBuilder(table=table, memory=memory, eos_token_ids=source.eos_token_ids, pooling=source.pooling),
        outputs=OutputRouter(
            table=table,
            memory=memory,
            scheduler=scheduler,
            eos_token_ids=source.eos_token_ids,
            pooling=source.pooling,
        ),
        grammars=Grammars(
            table=table,
            vocab_size=source.spec.vocab_size,
            eos_token_ids=source.eos_token_ids,
            load=_vocabulary(source, config.structured_outputs.structured_outputs_backend),
        ),
        sleeping=Sleep(
            device=sockets.device, memory=memory, scheduler=scheduler, can_sleep=config.platform.enable_sleep_mode
        ),
        device=sockets.device,
        depth=depth,
        max_waiting=config.scheduler.max_waiting,
    )


def pooling_facts(head: HeadChoice) -> PoolingFacts | None:
    """What front ends must know of a model that gives vectors or labels; None: it generates."""
    spec = head.spec
    if spec.head.kind == "language_model":
        return None
    return PoolingFacts(
        kind=spec.head.kind,
        width=spec.head.layers[-1].out_features if spec.head.layers else spec.hidden,
        pooling=spec.head.pooling,
        normalize=head.normalize,
        activation=head.activation,
        labels=head.labels,
        dimensions=head.dimensions,
        segments=spec.token_types > 1,
    )


def _vocabulary(source: ModelSource, backend: str) -> Callable[[], Vocabulary] | None:
    """Makes the grammars' vocabulary of a model, which imports the library."""
    tokenizer_json = source.tokenizer_json
    if tokenizer_json is None:
        return None

    def load() -> Vocabulary:
        from tenon_core.sampling.grammar import Vocabulary

        return Vocabulary.of(tokenizer_json(), source.spec.vocab_size, source.eos_token_ids, backend)

    return load


def _block_size(config: EngineConfig, backends: list[AttentionBackend]) -> int:
    layouts = [backend.layout for backend in backends]
    wanted = config.cache.block_size or max(layout.preferred_block_size for layout in layouts)
    for layout in layouts:
        if wanted % layout.kernel_block_size:
            raise ConfigError(
                f"block_size is {wanted}, which is no multiple of {layout.kernel_block_size}, the block of KV layout"
                f" {layout.id!r}",
                remedy=f"pass --block-size {-(-wanted // layout.kernel_block_size) * layout.kernel_block_size}",
            )
    return wanted


def _plan_memory(
    config: EngineConfig,
    sockets: Sockets,
    model: Model,
    policy: ShapePolicy,
    dtype: DType,
    block_size: int,
    useful_rows: int,
) -> MemoryPlan:
    block = sum(pool.block_bytes(block_size) for pool in plan_pools(model.groups))
    return plan_memory(
        memory=sockets.device.memory(),
        share=config.cache.memory_utilization or sockets.device.memory_share,
        weights=model.weight_bytes,
        activations=activation_bytes(model.spec, policy.limits, dtype.num_bytes),
        block=max(block, 1),
        wanted_blocks=min(useful_rows * len(model.groups) + 1, max_blocks_of(sockets.capabilities, block_size)),
        num_blocks=config.cache.num_blocks,
        kv_bytes=config.cache.kv_cache_memory,
    )


def _allocate_caches(model: Model, device: Device, plan: MemoryPlan, block_size: int) -> None:
    """A pool for the groups of each layout; a group's i-th layer uses its cache i. Raises `CapacityError`."""
    caches: list[Any] = [None] * len(model.spec.layers)
    for pool in plan_pools(model.groups):
        try:
            held = pool.backend.allocate(plan.num_blocks, block_size, pool.num_layers)
        except Exception as error:
            if isinstance(error, TenonError) or device.classify_fault(error) is not Fault.OUT_OF_MEMORY:
                raise
            raise CapacityError(
                f"the KV cache of {plan.num_blocks} blocks ({plan.kv} bytes) could not be had: {error}",
                remedy="lower --num-blocks, --kv-cache-memory or --memory-utilization",
            ) from error
        for group in pool.groups:
            for place, layer in enumerate(group.layers):
                caches[layer] = held[place]
    model.caches = caches


def _least(collectives: Collectives, device: Device, number: int) -> int:
    """The least of the ranks' numbers."""
    mine = device.zeros((1,), torch.int32) + number
    every = collectives.all_gather(mine)
    landed = device.host_buffer((collectives.size,), torch.int32)
    device.copy(landed, every)
    device.synchronize()
    return int(landed.min())


def _check_traceable(table: OpTable, sockets: Sockets, collectives: Collectives) -> None:
    """A device that compiles its steps runs nothing else: raise `ConfigError` for a kernel that cannot be traced."""
    if sockets.capabilities.executable is not ExecutableKind.TRACE:
        return
    if collectives.size > 1 and not collectives.flags.graph_safe:
        raise ConfigError(
            f"platform {sockets.platform.name!r} compiles its steps, and what its ranks say to each other cannot be"
            " compiled",
            remedy="pass --tensor-parallel-size 1",
        )
    for choice in table.choices:
        if not choice.kernel.flags.graph_safe and not isinstance(choice.spec, RowWritesSpec):
            refused = "; ".join(f"{name}: {reason}" for name, reason in choice.refused) or "nothing else is offered"
            raise ConfigError(
                f"platform {sockets.platform.name!r} compiles its steps, but kernel {choice.kernel.name!r} for"
                f" {choice.spec.summary()} cannot be compiled ({refused})",
                remedy="leave out --batch-invariant if it is set; else the platform needs its own kernel for this op",
            )


def _longest_resident(memory: KVMemory, num_blocks: int, max_model_len: int) -> int:
    """The longest sequence whose blocks all fit in the pool at once, at most the context's length."""
    low, high = 0, max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if memory.blocks_for(middle + 1) <= num_blocks - 1:
            low = middle
        else:
            high = middle - 1
    return low


def _is_derived(name: str) -> bool:
    """Tensors that follow from the configuration, repeat tied weights, or belong to a head that is not asked for."""
    return name.endswith(
        ("rotary_emb.inv_freq", "lm_head.weight", "position_ids", "pooler.dense.weight", "pooler.dense.bias")
    )


def _mover(device: Device) -> Callable[[Any], Any]:
    """Moves host tensors to the device; on the host itself they stay where they are (mapped, maybe)."""

    def move(tensor: Any) -> Any:
        if tensor.device == device.torch_device:
            return tensor
        target = device.empty(tuple(tensor.shape), tensor.dtype)
        device.copy(target, tensor)
        return target

    return move
