"""A step of a one-layer model, made of the contract's ops as the engine makes it: what executables are tried with.

    prepare_inputs -> embedding -> rms_norm -> qkv -> rope + KV write -> attention -> output -> head -> sampler

`twin` gives the same weights with memory of its own, so one side may be captured and the other run kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tenon_platforms.attention import AttentionBackend, AttentionKernel
from tenon_platforms.batch import NUM_ROW_COLUMNS, GQAInputs, RowState, SamplingBatch, StepInputs, StepOutputs
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, WeightUse
from tenon_platforms.model import AttentionMixer, GatedMLP, Head, Layer, ModelSpec, NormSpec
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import Dense, LinearPart, MergedLinearSpec
from tenon_platforms.ops.norm import RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.rows import PrepareInputsSpec
from tenon_platforms.ops.sampling import SamplerSpec
from tenon_platforms.shapes import ShapeKey
from tenon_platforms.torch_dtypes import to_torch

from ..subject import Subject
from .weights import generator, stored_linear, stored_part, to_device

VOCAB, HIDDEN, HEADS, KV_HEADS, DIM = 96, 32, 4, 2, 16
MAX_ROWS = 4
POSITIONS = 512


@dataclass(slots=True, kw_only=True)
class StepCall:
    """What an executable is called with."""

    inputs: StepInputs
    plans: list[Any]

    @property
    def key(self) -> ShapeKey:
        """The lattice key of the inputs."""
        return self.inputs.key


def model_spec() -> ModelSpec:
    """The model, for `shape_policy`."""
    rope = RopeSpec(head_dim=DIM, rotary_dim=DIM, base=10000.0, max_positions=POSITIONS)
    mixer = AttentionMixer(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, scale=DIM**-0.5, rope=rope)
    norm = NormSpec(eps=1e-6)
    layer = Layer(mixer=mixer, ffn=GatedMLP(intermediate=48, activation="silu"), pre_mixer=norm, pre_ffn=norm)
    return ModelSpec(
        architecture="conformance",
        vocab_size=VOCAB,
        hidden=HIDDEN,
        layers=(layer,),
        final_norm=norm,
        head=Head(),
        max_positions=POSITIONS,
    )


@dataclass(slots=True, kw_only=True)
class MiniModel:
    """Kernels and weights, shared by twins."""

    kernels: dict[str, Kernel]
    weights: dict[str, Any]
    backend: AttentionBackend
    cos_sin: Tensor
    block_size: int

    @property
    def graph_safe(self) -> bool:
        """Whether every kernel may stand in an executable."""
        return all(kernel.flags.graph_safe for kernel in self.kernels.values())

    @property
    def deterministic(self) -> bool:
        """Whether every kernel says so."""
        return all(kernel.flags.deterministic for kernel in self.kernels.values())


def make_model(subject: Subject, dtype: DType, block_size: int | None = None) -> MiniModel:
    """Choose the kernels and prepare random weights."""
    dense = Dense(stored=dtype)

    def linear(inner: int, *outer: int) -> MergedLinearSpec:
        parts = tuple(LinearPart(name=f"p{i}", out_features=size, scheme=dense) for i, size in enumerate(outer))
        return MergedLinearSpec(in_features=inner, parts=parts, dtype=dtype)

    attention = AttentionSpec(
        num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, scale=DIM**-0.5, dtype=dtype,
        kv_dtype=dtype if dtype in subject.capabilities.kv_dtypes else subject.capabilities.kv_dtypes[0],
    )  # fmt: skip
    attend = subject.choose(attention, subject.device)
    assert isinstance(attend, AttentionKernel)
    layout = attend.backend.layout
    size = block_size or max(layout.kernel_block_size, 16 // layout.kernel_block_size * layout.kernel_block_size)
    rope = RopeSpec(head_dim=DIM, rotary_dim=DIM, base=10000.0, max_positions=POSITIONS)
    specs = {
        "embedding": EmbeddingSpec(vocab_size=VOCAB, hidden=HIDDEN, scheme=dense, dtype=dtype),
        "norm": RMSNormSpec(hidden=HIDDEN, eps=1e-6, dtype=dtype),
        "qkv": linear(HIDDEN, HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM),
        "out": linear(HEADS * DIM, HIDDEN),
        "head": linear(HIDDEN, VOCAB),
        "prepare": PrepareInputsSpec(block_sizes=(size,)),
        "sampler": SamplerSpec(vocab_size=VOCAB),
    }
    kernels: dict[str, Kernel] = {name: subject.choose(spec) for name, spec in specs.items()}
    kernels["attention"] = attend
    write = QKNormRopeKVWriteSpec(
        num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype, layout_id=layout.id, rope=rope
    )
    kernels["rope_write"] = subject.choose(write, attend.backend)
    return MiniModel(
        kernels=kernels,
        weights=_weights(subject, specs, kernels),
        backend=attend.backend,
        cos_sin=subject.to_device(rope_table(rope)),
        block_size=size,
    )


def _weights(subject: Subject, specs: dict[str, Any], kernels: dict[str, Kernel]) -> dict[str, Any]:
    random = generator(77)
    held: dict[str, Any] = {}
    with subject.device.inference_context():
        for name, spec in specs.items():
            if isinstance(spec, MergedLinearSpec):
                stored: Any = stored_linear(spec, random)
            elif isinstance(spec, EmbeddingSpec):
                stored = stored_part(spec.scheme, (VOCAB, HIDDEN), random)
                stored = {"weight": stored["weight"] * HIDDEN**0.5}
            elif isinstance(spec, RMSNormSpec):
                stored = (torch.randn(HIDDEN, generator=random) * 0.2 + 1).to(to_torch(spec.dtype))
            else:
                continue
            held[name] = kernels[name].bind(to_device(subject, stored), WeightUse(op=spec.op, name=name))
    return held


@dataclass(slots=True, kw_only=True)
class MiniStep:
    """The step function over memory of its own. between: called after every kernel where nothing is captured."""

    model: MiniModel
    state: RowState
    cache: Any
    num_blocks: int
    between: Callable[[], None] = lambda: None

    @classmethod
    def make(cls, subject: Subject, model: MiniModel, max_blocks: int, between: Callable[[], None]) -> MiniStep:
        """Memory for `MAX_ROWS` rows of up to `max_blocks` blocks each."""
        device = subject.device
        num_blocks = MAX_ROWS * max_blocks + 1
        state = RowState(
            last_tokens=device.zeros((MAX_ROWS + 1,), torch.int32),
            params=device.zeros((MAX_ROWS + 1, NUM_ROW_COLUMNS), torch.int32),
            block_tables=device.zeros((1, MAX_ROWS + 1, max_blocks), torch.int32),
            counts=device.zeros((MAX_ROWS + 1, 2, VOCAB), torch.int32),
            edits=device.zeros((MAX_ROWS + 1, 2, VOCAB), torch.float32),
        )
        (cache,) = model.backend.allocate(num_blocks, model.block_size, 1)
        return cls(model=model, state=state, cache=cache, num_blocks=num_blocks, between=between)

    def __call__(self, call: StepCall) -> StepOutputs:
        """Tokens, and the logits as `hidden`."""
        inputs, weights = call.inputs, self.model.weights
        token_ids, slots = self._run("prepare", inputs, self.state)
        x = self._run("embedding", token_ids, weights["embedding"])
        qkv = self._run("qkv", self._run("norm", x, weights["norm"]), weights["qkv"])
        query = self._run("rope_write", qkv, inputs.positions, self.model.cos_sin, None, None, self.cache, slots[0])
        mixed = self._run("attention", GQAInputs(query=query, cache=self.cache), call.plans[0])
        x = x + self._run("out", mixed.flatten(1), weights["out"])
        logits = self._run("head", x.index_select(0, inputs.logit_index), weights["head"])
        batch = SamplingBatch(
            mode=inputs.key.mode,
            positions=inputs.positions[0].index_select(0, inputs.logit_index) + 1,
            params=self.state.params.index_select(0, inputs.logit_rows),
            counts=self.state.counts,
            edits=self.state.edits,
        )
        tokens = self._run("sampler", logits, batch)
        self.state.last_tokens[inputs.logit_rows] = tokens
        return StepOutputs(tokens=tokens[:, None], hidden=logits)

    def _run(self, name: str, *inputs: Any) -> Any:
        found = self.model.kernels[name].run(*inputs)
        self.between()
        return found
