"""The specs every op is tried with, by element type. Torch-free.

Sizes are small and odd on purpose: one of each kind that models have, one at a tile's edge, one that no tile likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tenon_platforms.capabilities import Capabilities
from tenon_platforms.dtypes import DType
from tenon_platforms.formats.gguf_types import BY_NAME, SUPPORTED
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import Dense, FP8Channel, GGUFBlocks, LinearPart, MergedLinearSpec, WeightScheme
from tenon_platforms.ops.mlp import ACTIVATIONS, ActivationMulSpec, GatedMLPSpec, MLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, LayerNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.pooling import MeanPoolSpec
from tenon_platforms.ops.quantized import FP8Block, FP8Static, Int8Channel, IntGroups
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeScaling, RopeSpec

from ..registry import Case

HALF = (DType.BFLOAT16, DType.FLOAT16)
COMPUTE = (DType.FLOAT32, *HALF)
BLOCK_TYPES = tuple(name for name in SUPPORTED if BY_NAME[name].elements > 1)
QUANTIZED: tuple[WeightScheme, ...] = (
    FP8Channel(),
    FP8Static(),
    FP8Block(),
    FP8Block(rows=16, columns=32),
    Int8Channel(),
    *(IntGroups(bits=4, group_size=size) for size in (32, 64, 128, 0)),
    IntGroups(bits=4, group_size=32, zeros=True),
    IntGroups(bits=4, group_size=64, zeros=True, ordered=True),
    IntGroups(bits=4, group_size=32, ordered=True),
    IntGroups(bits=8, group_size=128),
    IntGroups(bits=8, group_size=0, zeros=True),
)


def claimed(capabilities: Capabilities) -> tuple[DType, ...]:
    """Compute types the platform claims."""
    return tuple(dtype for dtype in COMPUTE if dtype in capabilities.dtypes)


def norms(dtypes: Iterable[DType], *, wide: bool) -> Iterator[Case]:
    """RMS norms."""
    for dtype in dtypes:
        for hidden in (1, 64, 127, *((2048, 4096) if wide else (576,))):
            yield Case(id=f"{dtype}-{hidden}", value=RMSNormSpec(hidden=hidden, eps=1e-6, dtype=dtype))
        yield Case(id=f"{dtype}-offset", value=RMSNormSpec(hidden=96, eps=1e-5, dtype=dtype, weight_offset=1.0))


def add_norms(dtypes: Iterable[DType], *, wide: bool) -> Iterator[Case]:
    """Residual add and norm."""
    for case in norms(dtypes, wide=wide):
        yield Case(id=case.id, value=AddRMSNormSpec(norm=case.value))


def _parts(sizes: Iterable[int], scheme: WeightScheme) -> tuple[LinearPart, ...]:
    return tuple(LinearPart(name=f"p{place}", out_features=size, scheme=scheme) for place, size in enumerate(sizes))


def linears(capabilities: Capabilities, *, wide: bool) -> Iterator[Case]:
    """Merged linears over every scheme that is claimed."""
    for dtype in claimed(capabilities):
        for stored in COMPUTE:
            if capabilities.scheme(Dense(stored=stored).id) is not None:
                spec = MergedLinearSpec(in_features=64, parts=_parts((48,), Dense(stored=stored)), dtype=dtype)
                yield Case(id=f"{dtype}-from-{stored}", value=spec)
        dense = Dense(stored=dtype)
        shapes = {
            "qkv-biased": MergedLinearSpec(in_features=96, parts=_parts((64, 32, 32), dense), dtype=dtype, bias=True),
            "odd": MergedLinearSpec(in_features=33, parts=_parts((17, 1, 5), dense), dtype=dtype),
            "long": MergedLinearSpec(in_features=1536, parts=_parts((65,), dense), dtype=dtype),
        }
        if wide:
            shapes["model"] = MergedLinearSpec(in_features=4096, parts=_parts((1024, 257), dense), dtype=dtype)
        yield from (Case(id=f"{dtype}-{name}", value=spec) for name, spec in shapes.items())
    dtype = claimed(capabilities)[0]
    served = [name for name in BLOCK_TYPES if capabilities.scheme(GGUFBlocks(type=name).id) is not None]
    for name in served:
        spec = MergedLinearSpec(in_features=256, parts=_parts((32, 16), GGUFBlocks(type=name)), dtype=dtype)
        yield Case(id=f"{dtype}-{name}", value=spec)
    for scheme in QUANTIZED:
        if capabilities.scheme(scheme.id) is not None:
            spec = MergedLinearSpec(in_features=256, parts=_parts((144, 16), scheme), dtype=dtype, bias=True)
            yield Case(id=f"{dtype}-{_name(scheme)}", value=spec)
    if len(served) > 1:
        mixed = (
            LinearPart(name="q", out_features=32, scheme=GGUFBlocks(type=served[0])),
            LinearPart(name="k", out_features=16, scheme=GGUFBlocks(type=served[-1])),
            LinearPart(name="v", out_features=16, scheme=Dense(stored=DType.FLOAT32)),
        )
        yield Case(id=f"{dtype}-mixed", value=MergedLinearSpec(in_features=256, parts=mixed, dtype=dtype))


def _name(scheme: WeightScheme) -> str:
    small = isinstance(scheme, FP8Block) and scheme != FP8Block()
    return f"{scheme.id}-small" if small else scheme.id


def embeddings(capabilities: Capabilities) -> Iterator[Case]:
    """Lookups in dense and in quantized tables, scaled and not."""
    for dtype in claimed(capabilities):
        spec = EmbeddingSpec(vocab_size=259, hidden=72, scheme=Dense(stored=dtype), dtype=dtype)
        yield Case(id=f"{dtype}", value=spec)
        yield Case(
            id=f"{dtype}-scaled",
            value=EmbeddingSpec(vocab_size=130, hidden=64, scheme=Dense(stored=dtype), dtype=dtype, scale=8.485281),
        )
    for name in BLOCK_TYPES:
        if capabilities.scheme(GGUFBlocks(type=name).id) is not None:
            dtype = claimed(capabilities)[0]
            spec = EmbeddingSpec(vocab_size=67, hidden=256, scheme=GGUFBlocks(type=name), dtype=dtype)
            yield Case(id=f"{dtype}-{name}", value=spec)


def activations(dtypes: Iterable[DType]) -> Iterator[Case]:
    """Activation times product."""
    for dtype in dtypes:
        for name in ACTIVATIONS:
            yield Case(id=f"{dtype}-{name}", value=ActivationMulSpec(features=45, activation=name, dtype=dtype))
        yield Case(id=f"{dtype}-wide", value=ActivationMulSpec(features=512, activation="silu", dtype=dtype))


def gated_mlps(capabilities: Capabilities) -> Iterator[Case]:
    """Whole feed-forwards."""
    for dtype in claimed(capabilities):
        for name, hidden, inner in (("silu", 64, 96), ("gelu_tanh", 33, 40)):
            dense = Dense(stored=dtype)
            spec = GatedMLPSpec(
                gate_up=MergedLinearSpec(in_features=hidden, parts=_parts((inner, inner), dense), dtype=dtype),
                down=MergedLinearSpec(in_features=inner, parts=_parts((hidden,), dense), dtype=dtype),
                activation=name,
            )
            yield Case(id=f"{dtype}-{name}", value=spec)


def normed(capabilities: Capabilities) -> Iterator[Case]:
    """A norm and what reads its rows: a merged linear and a feed-forward, in every claimed scheme of dense shapes."""
    for dtype in claimed(capabilities):
        for case in linears(capabilities, wide=False):
            linear: MergedLinearSpec = case.value
            if linear.dtype == dtype and (linear.in_features == 64 or linear.parts[0].scheme in QUANTIZED):
                norm = RMSNormSpec(hidden=linear.in_features, eps=1e-5, dtype=dtype)
                yield Case(id=case.id, value=AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=norm), then=linear))
        for case in gated_mlps(capabilities):
            ffn: GatedMLPSpec = case.value
            if ffn.down.dtype == dtype and ffn.gate_up.in_features == 64:
                norm = RMSNormSpec(hidden=64, eps=1e-5, dtype=dtype)
                yield Case(id=f"{case.id}-ffn", value=AddRMSNormThenSpec(norm=AddRMSNormSpec(norm=norm), then=ffn))


def layer_norms(dtypes: Iterable[DType]) -> Iterator[Case]:
    """Layer norms."""
    for dtype in dtypes:
        for hidden in (1, 64, 127, 384):
            yield Case(id=f"{dtype}-{hidden}", value=LayerNormSpec(hidden=hidden, eps=1e-12, dtype=dtype))


def mlps(capabilities: Capabilities) -> Iterator[Case]:
    """Whole feed-forwards without a gate, with biases."""
    for dtype in claimed(capabilities):
        for name, hidden, inner in (("gelu", 64, 96), ("relu", 33, 40)):
            dense = Dense(stored=dtype)
            spec = MLPSpec(
                up=MergedLinearSpec(in_features=hidden, parts=_parts((inner,), dense), dtype=dtype, bias=True),
                down=MergedLinearSpec(in_features=inner, parts=_parts((hidden,), dense), dtype=dtype, bias=True),
                activation=name,
            )
            yield Case(id=f"{dtype}-{name}", value=spec)


def mean_pools(dtypes: Iterable[DType]) -> Iterator[Case]:
    """Means over rows."""
    for dtype in dtypes:
        for hidden in (1, 96):
            yield Case(id=f"{dtype}-{hidden}", value=MeanPoolSpec(hidden=hidden, dtype=dtype))


def moes(capabilities: Capabilities) -> Iterator[Case]:
    """Mixtures of experts: few and many experts, one and several chosen, quantized."""
    for dtype in claimed(capabilities):
        dense = Dense(stored=dtype)
        for name, experts, top_k, renormalize in (("8x2", 8, 2, True), ("4x1", 4, 1, False), ("16x4", 16, 4, False)):
            yield Case(id=f"{dtype}-{name}", value=_moe(dtype, dense, experts, top_k, renormalize, 32, 24))
    dtype = claimed(capabilities)[0]
    if capabilities.scheme("gguf-q8_0") is not None:
        yield Case(id=f"{dtype}-Q8_0", value=_moe(dtype, GGUFBlocks(type="Q8_0"), 4, 2, True, 64, 32))
    grouped = IntGroups(bits=4, group_size=32)
    if capabilities.scheme(grouped.id) is not None:
        yield Case(id=f"{dtype}-{grouped.id}", value=_moe(dtype, grouped, 4, 2, True, 64, 32))


def _moe(
    dtype: DType, scheme: WeightScheme, experts: int, top_k: int, renormalize: bool, hidden: int, inner: int
) -> MoESpec:
    return MoESpec(
        hidden=hidden,
        intermediate=inner,
        num_experts=experts,
        top_k=top_k,
        renormalize=renormalize,
        activation="silu",
        gate=scheme,
        up=scheme,
        down=scheme,
        dtype=dtype,
    )


ROPES: dict[str, RopeSpec] = {
    "whole": RopeSpec(head_dim=16, rotary_dim=16, base=10000.0, max_positions=300),
    "partial": RopeSpec(head_dim=24, rotary_dim=8, base=1e6, max_positions=300),
    "interleaved": RopeSpec(head_dim=16, rotary_dim=16, base=10000.0, max_positions=300, interleaved=True),
    "axes": RopeSpec(head_dim=16, rotary_dim=16, base=10000.0, max_positions=300, axis_sections=(2, 3, 3)),
    "llama3": RopeSpec(
        head_dim=32,
        rotary_dim=32,
        base=5e5,
        max_positions=300,
        scaling=RopeScaling(kind="llama3", factor=8.0, original_max_positions=64),
    ),
    "yarn": RopeSpec(
        head_dim=32,
        rotary_dim=32,
        base=1e4,
        max_positions=300,
        scaling=RopeScaling(kind="yarn", factor=4.0, original_max_positions=64, attention_factor=1.138),
    ),
}


def ropes(dtypes: Iterable[DType]) -> Iterator[Case]:
    """Rotations. The spec has no type: that of the tensors counts."""
    for dtype in dtypes:
        for name, spec in ROPES.items():
            yield Case(id=f"{dtype}-{name}", value=(dtype, spec))


def kv_writes(dtypes: Iterable[DType], layout_id: str) -> Iterator[Case]:
    """Split, norm, rotate and write, as model families combine them."""
    for dtype in dtypes:
        norm = RMSNormSpec(hidden=16, eps=1e-6, dtype=dtype)
        gemma = RMSNormSpec(hidden=16, eps=1e-6, dtype=dtype, weight_offset=1.0)
        for name, heads, kv_heads, normed, rope in (
            ("plain", 4, 2, None, ROPES["whole"]),
            ("normed", 6, 2, norm, ROPES["whole"]),
            ("gemma", 3, 1, gemma, ROPES["whole"]),
            ("unrotated", 4, 4, None, None),
        ):
            spec = QKNormRopeKVWriteSpec(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=16,
                dtype=dtype,
                layout_id=layout_id,
                q_norm=normed,
                k_norm=normed,
                rope=rope,
            )
            yield Case(id=f"{dtype}-{name}", value=spec)
