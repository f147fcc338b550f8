"""Start-up: from an `EngineConfig` to an engine that has answered a real request.

The phases of a start, in order, each timed and reported: select the platform, open the checkpoint, adjust the
configuration, build the model, plan memory and assemble, warm the shape lattice, run one request. Nothing here knows
a device; what it decides is kept in a `ResolvedPlan`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tenon_core.config import EngineConfig
from tenon_core.loading.checkpoint import Checkpoint, open_checkpoint
from tenon_core.loading.model_tokenizer import open_tokenizer
from tenon_core.loading.progress import progress
from tenon_core.loading.sources import resolve_model
from tenon_core.models.family import Family
from tenon_core.models.heads import HeadChoice, choose_head
from tenon_core.models.registry import family_of
from tenon_core.models.sharding import Rank
from tenon_core.models.weights import DummySource, WeightSource
from tenon_core.sampling.params import SamplingParams
from tenon_core.sampling.pooling import Pooling
from tenon_platforms.adjustments import Ledger
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError, DeviceError
from tenon_platforms.handshake import load_selected
from tenon_platforms.hookspecs import control_plane
from tenon_platforms.manifest import Manifest
from tenon_platforms.model import ModelSpec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.options import parse_platform_options
from tenon_platforms.platform import Platform
from tenon_platforms.selection import SelectionRequest, select
from tenon_platforms.version import contract_version_text

from .assembly import Assembled, ModelSource, Parts, Sockets, assemble, pooling_facts
from .engine import Engine
from .giving_back import GivenBack
from .messages import NO_TOKENS, FinishReason, GenerateRequest
from .plan import ResolvedPlan, kernel_map, kernel_uses
from .ranks import Ranks, RanksExecutor
from .weight_source import CheckpointSource

LOG = logging.getLogger(__name__)
DTYPE_ALIASES = {"half": "float16", "float": "float32"}
KV_DTYPE_ALIASES = {"fp8": "float8_e4m3", "fp8_e4m3": "float8_e4m3"}
RANK_PATIENCE_SECONDS = 600.0
PROBE_TOKENS = 2  # the start-up request's output: one prefill and one decode


@dataclass(slots=True, kw_only=True)
class StartReport:
    """What a start decided and how long it took. seconds: phase -> seconds."""

    plan: ResolvedPlan
    ledger: Ledger
    assembled: Assembled
    manifest: Manifest
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Clock:
    """Times phases and tells who wants to know."""

    on_phase: Callable[[str, float], None]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self.on_phase(name, self.seconds[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model whose configuration was read: its family, its spec, and where its weights are."""

    checkpoint: Checkpoint
    family: Family
    head: HeadChoice
    max_model_len: int

    @property
    def spec(self) -> ModelSpec:
        """The model with its head."""
        return self.head.spec


def start_engine(config: EngineConfig, *, on_phase: Callable[[str, float], None] | None = None) -> Engine:
    """Start an engine and run one request on it. Raises `TenonError` with a remedy."""
    return start_with_report(config, on_phase=on_phase)[0]


def start_with_report(
    config: EngineConfig, *, on_phase: Callable[[str, float], None] | None = None
) -> tuple[Engine, StartReport]:
    """As `start_engine`, with what was decided on the way."""
    clock = _Clock(on_phase=on_phase or (lambda name, seconds: None))
    Parts.named(config)  # a wrong name is told before anything is downloaded
    size = config.parallel.tensor_parallel_size
    with clock.phase("select platform"):
        platform, manifest = select_platform(config)
        if size == 1:
            sockets = Sockets.open(platform)
    if size == 1:
        with GivenBack(partial(_close, sockets.device)) as taken:
            return _start_on(sockets, manifest, config, clock, taken)
    platform.rank_device(size - 1, size)  # one that is not there is told before anything is started
    ranks = Ranks.start(config, size)  # before the device is opened: a child has what its parent was bound to
    with GivenBack(ranks.close) as taken:
        with clock.phase("start ranks"):
            sockets = Sockets.open(platform, Rank(size=size))
            taken.give = partial(_close_ranks, ranks, sockets.device)
            ranks.watch(ranks.join(partial(_joined, sockets, 0, size, ranks.address)))
        return _start_on(sockets, manifest, config, clock, taken, ranks)


def start_rank(config: EngineConfig, rank: int, size: int, address: str) -> tuple[Assembled, Device]:
    """Another rank of an engine, ready for steps."""
    platform, manifest = select_platform(config)
    sockets = Sockets.open(platform, Rank(index=rank, size=size))
    with GivenBack(partial(_close, sockets.device)):
        clock = _Clock(on_phase=lambda name, seconds: None)
        collectives = _joined(sockets, rank, size, address)
        return _prepared(sockets, manifest, config, clock, collectives).assembled, sockets.device


def _joined(sockets: Sockets, rank: int, size: int, address: str) -> Collectives:
    collectives = sockets.platform.collectives(sockets.device, rank=rank, size=size, address=address)
    collectives.set_timeout(RANK_PATIENCE_SECONDS)  # while one compiles, the others wait
    return collectives


def _close(device: Device) -> None:
    device.synchronize()
    device.close()


def _close_ranks(ranks: Ranks, device: Device) -> None:
    ranks.close()
    ranks.collectives.close()
    _close(device)


def _start_on(
    sockets: Sockets,
    manifest: Manifest,
    config: EngineConfig,
    clock: _Clock,
    taken: GivenBack,
    ranks: Ranks | None = None,
) -> tuple[Engine, StartReport]:
    """The same on an open device, which is `taken`, with the other ranks."""
    collectives = Collectives() if ranks is None else ranks.collectives

    def loaded(assembled: Assembled) -> None:
        if ranks is not None:
            assembled.engine.executor = RanksExecutor(own=assembled.engine.executor, ranks=ranks)
        taken.give = assembled.engine.shutdown

    report = _prepared(sockets, manifest, config, clock, collectives, loaded)
    assembled, engine = report.assembled, report.assembled.engine
    with clock.phase("first request"):
        answer_one(engine)
    engine.kernels = kernel_uses(assembled.table)
    engine.mark_ready()
    control_plane().ready(report.plan.to_dict())
    return engine, report


def _prepared(
    sockets: Sockets,
    manifest: Manifest,
    config: EngineConfig,
    clock: _Clock,
    collectives: Collectives,
    on_loaded: Callable[[Assembled], None] = lambda assembled: None,
) -> StartReport:
    """One rank, up to the agreement of all on what they will run."""
    with clock.phase("open model"):
        opened = open_model(config)
    ledger, config = adjust(config, sockets, opened)
    dtype, kv_dtype = effective_dtypes(config, sockets.capabilities, opened, ledger)
    with clock.phase("load weights"):
        assembled = load(config, sockets, opened, dtype=dtype, kv_dtype=kv_dtype, collectives=collectives)
        on_loaded(assembled)
        opened.checkpoint.tensors.close()  # kernels have what they packed; what they use where it lies stays valid
    if line := assembled.table.reference_line():
        LOG.warning("%s", line)
    with clock.phase("warm up"):
        warm_up(assembled, sockets.device)
    plan = resolved_plan(config, sockets.platform, manifest, assembled, dtype, kv_dtype)
    if not collectives.agree(plan.fingerprint()):
        raise DeviceError("the ranks resolved different plans", remedy="use the same packages and flags on every rank")
    return StartReport(plan=plan, ledger=ledger, assembled=assembled, manifest=manifest, seconds=clock.seconds)


def select_platform(config: EngineConfig) -> tuple[Platform, Manifest]:
    """The platform that this machine and configuration call for, imported and made with its options."""
    selection = select(SelectionRequest(platform=config.platform.platform))
    for warning in selection.warnings:
        LOG.warning("%s", warning)
    options, notes = parse_platform_options(config.platform.platform_opt, selection.manifest)
    for note in notes:
        LOG.info("%s", note)
    platform: Platform = load_selected(selection)(options)
    control_plane().platform_loaded(platform)
    return platform, selection.manifest


def open_model(config: EngineConfig) -> OpenModel:
    """Find the model, read its configuration and make its spec; no weights are read."""
    path: Path = resolve_model(config.model.model, revision=config.model.revision, cache_dir=config.model.download_dir)
    checkpoint = open_checkpoint(path, with_tensors=config.model.load_format != "dummy")
    read, family = checkpoint.config, family_of(checkpoint.config)
    own_limit = int(read.get("max_position_embeddings") or 2048) if family.context is None else family.context(read)
    sentence = checkpoint.sentence
    cut = own_limit if sentence is None or sentence.max_length is None else min(sentence.max_length, own_limit)
    max_model_len = config.model.max_model_len or cut
    if max_model_len > own_limit:
        raise ConfigError(
            f"max_model_len is {max_model_len}; the model's own limit is {own_limit}",
            remedy=f"pass --max-model-len {own_limit} or less",
        )
    head = choose_head(
        family.spec(read, max_model_len),
        family.names(read),
        read,
        sentence=sentence,
        runner=config.model.runner,
        convert=config.model.convert,
        pooling=config.model.pooling,
    )
    return OpenModel(checkpoint=checkpoint, family=family, head=head, max_model_len=max_model_len)


def adjust(config: EngineConfig, sockets: Sockets, opened: OpenModel) -> tuple[Ledger, EngineConfig]:
    """The ledger of what the platform needs otherwise, and the configuration with it applied."""
    ledger = Ledger(strict=config.platform.strict)
    requested = config.flat()
    wanted = [
        *sockets.platform.adjustments(requested, opened.spec),
        *control_plane().adjustments(requested, sockets.capabilities),
    ]
    values = ledger.apply(requested, wanted)
    limit = sockets.capabilities.max_model_len
    if limit is not None and opened.max_model_len > limit:
        raise ConfigError(
            f"max_model_len is {opened.max_model_len}; platform {sockets.platform.name!r} goes up to {limit}",
            remedy=f"pass --max-model-len {limit}",
        )
    for line in ledger.lines():
        LOG.info("%s", line)
    return ledger, EngineConfig.from_flat(**values)


def effective_dtypes(
    config: EngineConfig, capabilities: Capabilities, opened: OpenModel, ledger: Ledger
) -> tuple[DType, DType]:
    """Types of activations and of the KV cache. "auto": the checkpoint's where the platform lists it, or its first."""
    wanted = DTYPE_ALIASES.get(config.model.dtype, config.model.dtype)
    if wanted == "auto":
        stored = checkpoint_dtype(opened.checkpoint.config)
        dtype = stored if stored in capabilities.dtypes else capabilities.dtypes[0]
    else:
        dtype = DType(wanted)
        if dtype not in capabilities.dtypes:
            raise ConfigError(
                f"dtype {dtype} is not available here: available are {', '.join(map(str, capabilities.dtypes))}",
                remedy="pass --dtype auto",
            )
    kept = KV_DTYPE_ALIASES.get(config.cache.kv_cache_dtype, config.cache.kv_cache_dtype)
    kv_dtype = dtype if kept == "auto" else DType(kept)
    if kv_dtype not in capabilities.kv_dtypes:
        raise ConfigError(
            f"--kv-cache-dtype {config.cache.kv_cache_dtype} ({kv_dtype}) is not available here: available are"
            f" {', '.join(map(str, capabilities.kv_dtypes))}",
            remedy="pass --kv-cache-dtype auto",
        )
    return dtype, kv_dtype


def checkpoint_dtype(config: Mapping[str, Any]) -> DType | None:
    """The type a configuration says its weights were saved in, if it is one of the contract's."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return DType(name) if name in DType._value2member_map_ else None


def load(
    config: EngineConfig,
    sockets: Sockets,
    opened: OpenModel,
    *,
    dtype: DType,
    kv_dtype: DType,
    make_table: Callable[..., OpTable] = OpTable,
    collectives: Collectives | None = None,
) -> Assembled:
    """Read the weights into kernels and assemble the engine. make_table: as for `assemble`."""
    checkpoint, family = opened.checkpoint, opened.family
    weights: WeightSource
    if config.model.load_format == "dummy":
        weights = DummySource.for_model(
            opened.spec,
            opened.head.names,
            dtype=dtype,
            seed=config.platform.seed,
            torch_device=sockets.device.torch_device,
        )
        total = 0
    else:
        weights = CheckpointSource(checkpoint.tensors, sockets.capabilities, family.rename)
        total = len(tuple(checkpoint.tensors.names()))
    source = ModelSource(
        name=config.model.model,
        spec=opened.spec,
        names=opened.head.names,
        weights=weights,
        pooling=pooling_facts(opened.head),
        eos_token_ids=tuple(checkpoint.eos_token_ids),
        tokenizer_json=lambda: open_tokenizer(config.model, checkpoint).to_str(),
    )
    sockets.device.seed(config.platform.seed)
    with sockets.device.inference_context(), progress("loading weights", total=total) as advance:
        return assemble(
            config,
            sockets,
            source,
            dtype=dtype,
            kv_dtype=kv_dtype,
            max_model_len=opened.max_model_len,
            on_read=lambda name: advance(1),
            make_table=make_table,
            collectives=collectives,
        )


def warm_up(assembled: Assembled, device: Device) -> None:
    """Compile, capture or run every key of the lattice that must be ready before requests are."""
    with _no_garbage_collection(), device.inference_context():
        keys = list(assembled.policy.eager_keys())
        assembled.runner.compile_ahead(chain(keys, assembled.policy.typical_keys()))
        for key in keys:
            assembled.runner.prepare(key)


def resolved_plan(
    config: EngineConfig,
    platform: Platform,
    manifest: Manifest,
    assembled: Assembled,
    dtype: DType,
    kv_dtype: DType,
) -> ResolvedPlan:
    """Freeze what was decided."""
    return ResolvedPlan(
        contract=contract_version_text(),
        platform=platform.name,
        platform_version=manifest.version,
        config=config.flat(),
        model_fingerprint=assembled.model.spec.fingerprint(),
        dtype=dtype.value,
        kv_dtype=kv_dtype.value,
        block_size=assembled.block_size,
        num_blocks=assembled.memory.num_blocks,
        kernels=kernel_map(assembled.table),
        lattice=tuple(str(key) for key in assembled.policy.eager_keys()),
    )


def answer_one(engine: Engine) -> None:
    """Run one real request to its end, timing its last token; raises `DeviceError` where it fails."""
    prompt = np.zeros(1, dtype="<i4").tobytes()
    count = min(PROBE_TOKENS, engine.facts.max_model_len - 1)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=count, ignore_eos=True)
    pooling = None
    if (facts := engine.facts.pooling) is not None:
        params, pooling = NO_TOKENS, Pooling(per_token=facts.pooling == "all")
    request = GenerateRequest(id=0, prompt=prompt, params=params, cache_salt="start-up", pooling=pooling)
    engine.submit(request)
    while engine.has_work():
        began = time.perf_counter()
        update = engine.step()
        if update is not None and (update.tokens or update.pooled):
            engine.token_seconds = time.perf_counter() - began
        for finished in update.finished if update is not None else ():
            if finished.reason not in (FinishReason.LENGTH, FinishReason.STOP):
                raise DeviceError(f"the start-up request failed: {finished.message or finished.reason}")
    engine.reset_prefix_cache()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Capture and compilation make many objects that live on; collecting among them costs seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
