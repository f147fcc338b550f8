"""From a `ModelSpec` and weights to a `Model`: every layer asks the op table for a kernel by spec.

Runs once at start-up. A weight is read, bound by its kernel (which may repack it) and dropped, layer by layer, so the
peak is the model plus one layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionKernel
from tenon_platforms.collectives import Collectives
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.kernel import Kernel, WeightUse
from tenon_platforms.model import MLP, GatedMLP, Layer, ModelSpec, MoE, NormSpec
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import Dense, GGUFBlocks, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.mlp import GatedMLPSpec, MLPSpec
from tenon_platforms.ops.mlp_reference import ACTIVATION_FUNCTIONS
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, LayerNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.pooling import MeanPoolSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import (
    GatedMLPWeights,
    LinearWeights,
    MLPWeights,
    MoEWeights,
    NormedWeights,
    NormWeights,
    PartTensors,
)
from tenon_platforms.torch_dtypes import to_torch

from .family import WeightNames
from .groups import plan_groups
from .model import (
    AddThenNorm,
    AttentionBlock,
    Bound,
    BuiltLayer,
    FirstNorm,
    InputEmbedding,
    LayerGroup,
    Model,
    NormThen,
    PoolingHead,
)
from .weights import WeightReader

POOLED_ACTIVATIONS = {"": None, "tanh": torch.tanh, **ACTIVATION_FUNCTIONS}


@dataclass(slots=True, kw_only=True)
class ModelBuilder:
    """Builds one model. `dtype`: of weights that are not quantized and of activations; `kv_dtype`: of the cache."""

    spec: ModelSpec
    names: WeightNames
    table: OpTable
    device: Device
    reader: WeightReader
    dtype: DType
    kv_dtype: DType
    collectives: Collectives = field(default_factory=Collectives)
    _cos_sin: dict[RopeSpec, Tensor] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)

    def build(self) -> Model:
        """The whole model, weights bound."""
        groups = self._groups()
        group_of = {layer: group for group in groups for layer in group.layers}
        embedding, embedding_weights = self._embedding()
        layers = self._layers(group_of)
        last = self.names.at(len(layers))
        model = Model(
            spec=self.spec,
            groups=groups,
            embedding=self._input(embedding),
            layers=layers,
            final_norm=self._add_norm(self.spec.final_norm, last.final_norm),
            head=self._head(embedding_weights) if self.spec.head.kind == "language_model" else self._pooling_head(),
        )
        model.weight_bytes = sum(self._bytes.values())
        return model

    def _groups(self) -> tuple[LayerGroup, ...]:
        groups = []
        for index, plan in enumerate(plan_groups(self.spec, dtype=self.dtype, kv_dtype=self.kv_dtype)):
            kernel = self.table.choose(plan.spec, self.device)
            assert isinstance(kernel, AttentionKernel)
            groups.append(
                LayerGroup(index=index, backend=kernel.backend, layers=plan.layers, window=plan.spec.sliding_window)
            )
        return tuple(groups)

    def _layers(self, group_of: dict[int, LayerGroup]) -> list[BuiltLayer]:
        """The first layer makes the choices; the others follow them, several at once where preparing is host work."""

        def build(index: int) -> BuiltLayer:
            with self.device.inference_context():
                return self._layer(index, group_of[index])

        indices = range(len(self.spec.layers))
        if self.device.load_threads == 1:
            return [build(index) for index in indices]
        with ThreadPoolExecutor(self.device.load_threads) as pool:
            return [*map(build, indices[:1]), *pool.map(build, indices[1:])]

    def _layer(self, index: int, group: LayerGroup) -> BuiltLayer:
        layer, names = self.spec.layers[index], self.names.at(index)
        return BuiltLayer(
            qkv=self._qkv(index, layer, names),
            mixer=self._attention(index, layer, names, group),
            ffn=self._ffn(layer, names),
            post_mixer=None if layer.post_mixer is None else self._norm(layer.post_mixer, names.post_mixer),
            post_ffn=None if layer.post_ffn is None else self._norm(layer.post_ffn, names.post_ffn),
            all_reduce=self.collectives.all_reduce if self.collectives.size > 1 else None,
        )

    def _qkv(self, index: int, layer: Layer, names: WeightNames) -> Bound | NormThen:
        mixer, dim = layer.mixer, layer.mixer.head_dim
        query, keys = mixer.num_heads * dim, mixer.num_kv_heads * dim
        spec, weights = self._linear_weights(
            self.spec.hidden,
            (("q", names.q, query), ("k", names.k, keys), ("v", names.v, keys)),
            shard="out",
            unit=dim,
            bias=mixer.qkv_bias,
        )
        if index:
            return self._normed(layer.pre_mixer, names.pre_mixer, spec, weights, "q")
        norm: Bound | FirstNorm | AddThenNorm
        if self.spec.post_norm:
            norm = self._add_norm(layer.pre_mixer, names.first_norm)
        else:
            norm = FirstNorm(norm=self._norm(layer.pre_mixer, names.pre_mixer))
        return NormThen(norm=norm, then=self._bind(spec, weights, "q"))

    def _normed(
        self,
        norm: NormSpec,
        name: str,
        then: MergedLinearSpec | GatedMLPSpec,
        weights: LinearWeights | GatedMLPWeights,
        use: str,
    ) -> Bound | NormThen:
        """The norm called `name` and the op that reads its rows, as one op where the norm has one."""
        if self.spec.post_norm:
            return NormThen(norm=self._add_norm(norm, name), then=self._bind(then, weights, use))
        spec = AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=self._rms_spec(norm, self.spec.hidden)), then=then)
        return self._bind(spec, NormedWeights(norm=self._norm_weight(name), then=weights), use)

    def _attention(self, index: int, layer: Layer, names: WeightNames, group: LayerGroup) -> AttentionBlock:
        mixer, dim = layer.mixer, layer.mixer.head_dim
        query = mixer.num_heads * dim
        out = self._linear(query, (("out", names.out, self.spec.hidden),), shard="in", unit=dim, bias=mixer.out_bias)
        norm = None if mixer.qk_norm is None else self._rms_spec(mixer.qk_norm, dim)
        dtype = to_torch(self.dtype)
        write = self.table.choose(
            QKNormRopeKVWriteSpec(
                num_heads=mixer.num_heads,
                num_kv_heads=mixer.num_kv_heads,
                head_dim=dim,
                dtype=self.dtype,
                layout_id=group.backend.layout.id,
                q_norm=norm,
                k_norm=norm,
                rope=mixer.rope,
            ),
            group.backend,
        )
        return AttentionBlock(
            layer=index,
            group=group.index,
            backend=group.backend,
            out=out,
            rope_write=write,
            cos_sin=self._rope(mixer.rope),
            q_norm=None if norm is None else self.reader.dense(f"{names.q_norm}.weight", (dim,), dtype),
            k_norm=None if norm is None else self.reader.dense(f"{names.k_norm}.weight", (dim,), dtype),
            sinks=self.reader.dense(names.sinks, (mixer.num_heads,), torch.float32) if mixer.sinks else None,
        )

    def _ffn(self, layer: Layer, names: WeightNames) -> Bound | NormThen:
        ffn = layer.ffn
        if isinstance(ffn, GatedMLP):
            return self._normed(layer.pre_ffn, names.pre_ffn, *self._gated_mlp(ffn, names), names.gate)
        then = self._mlp(ffn, names) if isinstance(ffn, MLP) else self._moe(ffn, names)
        return NormThen(norm=self._add_norm(layer.pre_ffn, names.pre_ffn), then=then)

    def _mlp(self, ffn: MLP, names: WeightNames) -> Bound:
        hidden, width = self.spec.hidden, ffn.intermediate
        up, first = self._linear_weights(hidden, (("up", names.mlp_up, width),), shard="out", unit=1, bias=ffn.bias)
        down, last = self._linear_weights(width, (("down", names.mlp_down, hidden),), shard="in", unit=1, bias=ffn.bias)
        spec = MLPSpec(up=up, down=down, activation=ffn.activation)
        return self._bind(spec, MLPWeights(up=first, down=last), names.mlp_up)

    def _gated_mlp(self, ffn: GatedMLP, names: WeightNames) -> tuple[GatedMLPSpec, GatedMLPWeights]:
        hidden, width = self.spec.hidden, ffn.intermediate
        gate_up, merged = self._linear_weights(
            hidden, (("gate", names.gate, width), ("up", names.up, width)), shard="out", unit=1, bias=False
        )
        down, last = self._linear_weights(width, (("down", names.down, hidden),), shard="in", unit=1, bias=False)
        spec = GatedMLPSpec(gate_up=gate_up, down=down, activation=ffn.activation)
        return spec, GatedMLPWeights(gate_up=merged, down=last)

    def _moe(self, ffn: MoE, names: WeightNames) -> Bound:
        hidden, width = self.spec.hidden, ffn.intermediate
        shapes = ((width, hidden), (width, hidden), (hidden, width))
        stacks = [
            self._experts(expert, stacked, ffn.num_experts, shape)
            for expert, stacked, shape in zip(names.experts, names.stacked_experts, shapes, strict=True)
        ]
        spec = MoESpec(
            hidden=hidden,
            intermediate=width,
            num_experts=ffn.num_experts,
            top_k=ffn.top_k,
            renormalize=ffn.renormalize,
            activation=ffn.activation,
            gate=stacks[0][0],
            up=stacks[1][0],
            down=stacks[2][0],
            dtype=self.dtype,
        )
        weights = MoEWeights(
            router=self.reader.dense(f"{names.router}.weight", (ffn.num_experts, hidden), to_torch(self.dtype)),
            gate=stacks[0][1],
            up=stacks[1][1],
            down=stacks[2][1],
        )
        return self._bind(spec, weights, names.router)

    def _experts(self, expert: str, stacked: str, count: int, shape: tuple[int, int]) -> tuple[Any, PartTensors]:
        if self.reader.has(f"{stacked}.weight"):
            name = f"{stacked}.weight"
            return self.reader.scheme(name), self.reader.part(name, (count, *shape))
        each = [f"{expert.format(e=index)}.weight" for index in range(count)]
        schemes = [self.reader.scheme(name) for name in each]
        for name, scheme in zip(each, schemes, strict=True):
            if scheme != schemes[0]:
                raise ConfigError(
                    f"experts of one layer differ in how they are stored: {each[0]!r} is {schemes[0].id}, {name!r} is"
                    f" {scheme.id}"
                )
        parts = [self.reader.part(name, shape) for name in each]
        return schemes[0], {key: _stacked([part[key] for part in parts]) for key in parts[0]}

    def _embedding(self) -> tuple[Bound, PartTensors]:
        name = f"{self.names.embedding}.weight"
        spec = EmbeddingSpec(
            vocab_size=self.spec.vocab_size,
            hidden=self.spec.hidden,
            scheme=self._table_scheme(name),
            dtype=self.dtype,
            scale=self.spec.embedding_scale,
        )
        weights = self.reader.part(name, (self.spec.vocab_size, self.spec.hidden))
        uses = ("embedding", "head") if self.spec.head.tied else ("embedding",)
        return self._bind(spec, weights, *uses), weights

    def _input(self, tokens: Bound) -> InputEmbedding:
        """The embedding with what is added to it."""
        spec = self.spec
        learned = spec.learned_positions
        return InputEmbedding(
            tokens=tokens,
            token_types=self._table(self.names.token_types, spec.token_types) if spec.token_types else None,
            has_segments=spec.token_types > 1,
            positions=None if learned is None else self._table(self.names.positions, learned.count),
            offset=0 if learned is None else learned.offset,
        )

    def _table(self, module: str, count: int) -> Bound:
        name, hidden = f"{module}.weight", self.spec.hidden
        spec = EmbeddingSpec(vocab_size=count, hidden=hidden, scheme=self._table_scheme(name), dtype=self.dtype)
        return self._bind(spec, self.reader.part(name, (count, hidden)), "embedding")

    def _table_scheme(self, name: str) -> WeightScheme:
        scheme = self.reader.scheme(name)
        if not isinstance(scheme, (Dense, GGUFBlocks)):
            raise ConfigError(
                f"{name!r} is a table of embeddings stored as {scheme.id}: tables are plain or GGUF blocks",
                remedy="use a checkpoint that quantizes linear layers only",
            )
        return scheme

    def _pooling_head(self) -> PoolingHead:
        head, width = self.spec.head, self.spec.hidden
        layers = []
        for layer, name in zip(head.layers, self.names.head_layers, strict=True):
            bound = self._linear(
                width, ((name, name, layer.out_features),), shard="none", unit=1, bias=layer.bias, adapters=False
            )
            layers.append((bound, POOLED_ACTIVATIONS[layer.activation]))
            width = layer.out_features
        mean = None
        if head.pooling == "mean":
            mean = self.table.choose(MeanPoolSpec(hidden=self.spec.hidden, dtype=self.dtype))
        return PoolingHead(mean=mean, layers=tuple(layers))

    def _head(self, embedding: PartTensors) -> Bound:
        vocab, hidden = self.spec.vocab_size, self.spec.hidden
        if not self.spec.head.tied:
            return self._linear(hidden, (("head", self.names.head, vocab),), shard="out", unit=1, bias=False)
        scheme = self.reader.scheme(f"{self.names.embedding}.weight")
        part = LinearPart(name="head", out_features=vocab, scheme=scheme, shard="out", adapters=False)
        spec = MergedLinearSpec(in_features=hidden, parts=(part,), dtype=self.dtype)
        return self._bind(spec, LinearWeights(parts=(embedding,)), "embedding", "head")

    def _linear(
        self,
        width: int,
        parts: Iterable[tuple[str, str, int]],
        *,
        shard: str,
        unit: int,
        bias: bool,
        adapters: bool = True,
    ) -> Bound:
        spec, weights = self._linear_weights(width, tuple(parts), shard=shard, unit=unit, bias=bias, adapters=adapters)
        return self._bind(spec, weights, spec.parts[0].name)

    def _linear_weights(
        self,
        width: int,
        parts: tuple[tuple[str, str, int], ...],
        *,
        shard: str,
        unit: int,
        bias: bool,
        adapters: bool = True,
    ) -> tuple[MergedLinearSpec, LinearWeights]:
        dtype = to_torch(self.dtype)
        spec = MergedLinearSpec(
            in_features=width,
            parts=tuple(
                LinearPart(
                    name=part,
                    out_features=features,
                    scheme=self.reader.scheme(f"{name}.weight"),
                    shard=shard,
                    shard_unit=unit,
                    adapters=adapters,
                )
                for part, name, features in parts
            ),
            dtype=self.dtype,
            bias=bias,
        )
        weights = LinearWeights(
            parts=tuple(self.reader.part(f"{name}.weight", (features, width)) for _, name, features in parts),
            bias=torch.cat([self.reader.dense(f"{name}.bias", (features,), dtype) for _, name, features in parts])
            if bias
            else None,
        )
        return spec, weights

    def _rms_spec(self, norm: NormSpec, width: int) -> RMSNormSpec:
        return RMSNormSpec(hidden=width, eps=norm.eps, dtype=self.dtype, weight_offset=norm.weight_offset)

    def _norm(self, norm: NormSpec, name: str) -> Bound:
        hidden = self.spec.hidden
        if norm.kind == "layer":
            bias = self.reader.dense(f"{name}.bias", (hidden,), to_torch(self.dtype))
            weights = NormWeights(weight=self._norm_weight(name), bias=bias)
            return self._bind(LayerNormSpec(hidden=hidden, eps=norm.eps, dtype=self.dtype), weights, name)
        return self._bind(self._rms_spec(norm, hidden), self._norm_weight(name), name)

    def _add_norm(self, norm: NormSpec, name: str) -> Bound | AddThenNorm:
        if self.spec.post_norm:
            return AddThenNorm(norm=self._norm(norm, name))
        spec = AddRMSNormSpec(norm=self._rms_spec(norm, self.spec.hidden))
        return self._bind(spec, self._norm_weight(name), name)

    def _norm_weight(self, name: str) -> Tensor:
        return self.reader.dense(f"{name}.weight", (self.spec.hidden,), to_torch(self.dtype))

    def _rope(self, spec: RopeSpec | None) -> Tensor | None:
        if spec is None:
            return None
        if spec not in self._cos_sin:
            table = rope_table(spec)
            target = self.device.empty(tuple(table.shape), table.dtype)
            self.device.copy(target, table)
            self._cos_sin[spec] = target
        return self._cos_sin[spec]

    def _bind(self, spec: Spec, weights: Any, *names: str) -> Bound:
        kernel: Kernel = self.table.choose(spec)
        bound = Bound(kernel=kernel, weights=kernel.bind(weights, *(WeightUse(op=spec.op, name=n) for n in names)))
        self._bytes.update(_held(bound.weights))
        return bound


def _stacked(parts: list[Tensor]) -> Tensor:
    """[experts, ...]; bytes are stacked, since not every device stacks 8-bit floats."""
    if parts[0].element_size() > 1:
        return torch.stack(parts)
    return torch.stack([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)


def _held(value: Any) -> Iterable[tuple[int, int]]:
    """(identity, bytes) of everything prepared weights hold; what hides its tensors says its size with `nbytes`."""
    if isinstance(value, Tensor):
        yield value.data_ptr(), value.numel() * value.element_size()
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _held(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _held(item)
    elif isinstance(value, NormWeights):
        yield from _held((value.weight, value.bias))
    elif isinstance(size := getattr(value, "nbytes", None), int):
        yield id(value), size
