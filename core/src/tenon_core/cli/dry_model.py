"""A model built of tensors without memory, to see which kernels it would get: the op table's choices, nothing run.

Everything asks the table as it does at start-up, the runner's own ops included. Kernels keep their weights as they
come, since preparing them (packing, quantizing) needs their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Sockets
from tenon_core.engine.start import DTYPE_ALIASES, select_platform
from tenon_core.execution.runner import Runner, RunnerLimits
from tenon_core.loading.tensors import TensorSource
from tenon_core.models.builder import ModelBuilder
from tenon_core.models.weights import WeightReader, WeightSource, tensor_shapes
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import EngineLimits
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.linear import Dense, GGUFBlocks, WeightScheme
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import Choice, OpTable
from tenon_platforms.ops.weights import PartTensors
from tenon_platforms.torch_dtypes import to_torch

from .model_card import ModelCard, open_card

SHORT_CONTEXT = 256  # of the runner that is made for its choices; no op depends on it


class DryTable(OpTable):
    """An op table whose kernels take weights as they are."""

    __slots__ = ()

    def choose(self, spec: Spec, *context: Any) -> Kernel:
        return replace(OpTable.choose(self, spec, *context), prepare=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One tensor as it is stored. shape counts elements."""

    shape: tuple[int, ...]
    scheme: WeightScheme
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyWeights:
    """A `WeightSource` of tensors without memory."""

    stored: dict[str, Stored]

    @classmethod
    def of_index(cls, tensors: TensorSource, rename: Callable[[str], str]) -> EmptyWeights:
        """As a checkpoint's index says."""
        infos = (tensors.info(name) for name in tensors.names())
        return cls(
            stored={
                rename(info.name): Stored(shape=info.shape, scheme=info.scheme, num_bytes=info.num_bytes)
                for info in infos
            }
        )

    @classmethod
    def of_spec(cls, card: ModelCard, dtype: DType) -> EmptyWeights:
        """As a configuration calls for, every tensor in one type."""
        shapes = tensor_shapes(card.spec, card.names)
        return cls(stored={name: Stored(shape=shape, scheme=Dense(stored=dtype)) for name, shape in shapes})

    def names(self) -> Iterable[str]:
        return self.stored

    def has(self, name: str) -> bool:
        return name in self.stored

    def scheme(self, name: str) -> WeightScheme:
        return self.stored[name].scheme

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored[name].shape

    def tensors(self, name: str) -> PartTensors:
        held = self.stored[name]
        if isinstance(held.scheme, GGUFBlocks):
            shape = (*held.shape[:-1], held.num_bytes // math.prod(held.shape[:-1]))
            return {"blocks": torch.empty(shape, dtype=torch.uint8, device="meta")}
        dtype = to_torch(held.scheme.stored) if isinstance(held.scheme, Dense) else torch.uint8
        return {"weight": torch.empty(held.shape, dtype=dtype, device="meta")}


def op_choices(config: EngineConfig) -> dict[str, Any]:
    """Every choice as plain data. Raises `ConfigError` as a start would: `--strict-ops`, an unserved scheme."""
    card = open_card(config)
    platform, _ = select_platform(config)
    sockets = Sockets.open(platform)
    dtype = _dtype(config, card, sockets)
    table = DryTable(
        platform=platform.name, strict=config.platform.strict_ops, batch_invariant=config.platform.batch_invariant
    )
    try:
        platform.register_ops(table, sockets.device)
        _build(config, card, sockets, table, dtype)
        line = table.reference_line()
    finally:
        sockets.device.close()
    return {
        "model": card.name,
        "platform": platform.name,
        "dtype": dtype.value,
        "weights": "index" if card.has_weights else "configuration only",
        "choices": [_plain(choice) for choice in table.choices],
        "reference_line": line,
    }


def _dtype(config: EngineConfig, card: ModelCard, sockets: Sockets) -> DType:
    wanted = DTYPE_ALIASES.get(config.model.dtype, config.model.dtype)
    if wanted != "auto":
        return DType(wanted)
    return card.dtype if card.dtype in sockets.capabilities.dtypes else sockets.capabilities.dtypes[0]


def _build(config: EngineConfig, card: ModelCard, sockets: Sockets, table: OpTable, dtype: DType) -> None:
    """Build the model and a small runner: between them they ask for every op."""
    spec = replace(card.spec, max_positions=min(card.spec.max_positions, SHORT_CONTEXT))
    weights: WeightSource = (
        EmptyWeights.of_index(card.checkpoint.tensors, card.family.rename)
        if card.has_weights
        else EmptyWeights.of_spec(card, dtype)
    )
    model = ModelBuilder(
        spec=card.spec,
        names=card.names,
        table=table,
        device=sockets.device,
        reader=WeightReader(source=weights, to_device=lambda tensor: tensor),
        dtype=dtype,
        kv_dtype=dtype,
    ).build()
    block_size = max(group.backend.layout.preferred_block_size for group in model.groups)
    blocks = -(-SHORT_CONTEXT // block_size) + 1
    limits = EngineLimits(
        max_rows=8, max_model_len=SHORT_CONTEXT, max_blocks=blocks, enforce_eager=config.platform.enforce_eager
    )
    policy = sockets.execution.shape_policy(spec, limits, sockets.capabilities)
    Runner(
        model=model,
        table=table,
        device=sockets.device,
        execution=sockets.execution,
        policy=policy,
        limits=RunnerLimits(max_rows=8, max_blocks=blocks, block_size=block_size, num_blocks=2, depth=0),
    ).release()


def _plain(choice: Choice) -> dict[str, Any]:
    kernel = choice.kernel
    return {
        "op": choice.spec.op,
        "kernel": kernel.name,
        "source": choice.source,
        "uses": choice.num_uses,
        "on_reference": choice.on_reference,
        "native": kernel.native,
        "batch_invariant": kernel.flags.batch_invariant,
        "graph_safe": kernel.flags.graph_safe,
        "refused": [{"offer": offer, "reason": reason} for offer, reason in choice.refused],
        "summary": choice.spec.summary(),
        "fingerprint": choice.spec.fingerprint(),
        "spec": choice.spec.to_dict(),
    }
