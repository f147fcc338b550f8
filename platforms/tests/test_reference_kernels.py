"""Reference kernels against the same formula in float64 numpy: norms, linears, embeddings, MLPs, experts, rope."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenon_platforms.dtypes import DType
from tenon_platforms.ops.embedding import EmbeddingSpec
from tenon_platforms.ops.linear import Dense, FP8Channel, LinearPart, MergedLinearSpec
from tenon_platforms.ops.linear_reference import quantize_fp8
from tenon_platforms.ops.mlp import ActivationMulSpec, GatedMLPSpec
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.normed import AddRMSNormThenSpec
from tenon_platforms.ops.rope import RopeScaling, RopeSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, MoEWeights, NormedWeights
from tenon_platforms.torch_dtypes import to_torch

pytestmark = pytest.mark.unit
FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
UNIT = {DType.FLOAT32: 2.0**-23, DType.BFLOAT16: 2.0**-7, DType.FLOAT16: 2.0**-10}  # spacing of floats at 1
DENSE = Dense(stored=DType.FLOAT32)
FEW = settings(max_examples=25, deadline=None)


def table(*, batch_invariant: bool = False) -> OpTable:
    return OpTable(platform="reference", batch_invariant=batch_invariant)


def random(seed: int, *shape: int, dtype: DType = DType.FLOAT32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(to_torch(dtype))


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def close(found: torch.Tensor, exact: np.ndarray, dtype: DType, units: float = 4.0) -> None:
    """Within some units of the last place of the largest value."""
    assert found.dtype == to_torch(dtype)
    assert found.shape == exact.shape
    if exact.size:
        np.testing.assert_allclose(
            wide(found), exact, rtol=units * UNIT[dtype], atol=units * UNIT[dtype] * np.abs(exact).max()
        )


@FEW
@given(
    dtype=st.sampled_from(FLOATS),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    hidden=st.integers(1, 70),
    offset=st.sampled_from([0.0, 1.0]),
    eps=st.sampled_from([1e-6, 1e-5, 0.1]),
)
def test_rms_norm(dtype: DType, shape: list[int], hidden: int, offset: float, eps: float) -> None:
    x, weight = random(0, *shape, hidden, dtype=dtype, scale=3.0), random(1, hidden, dtype=dtype)
    kernel = table().choose(RMSNormSpec(hidden=hidden, eps=eps, dtype=dtype, weight_offset=offset))
    scaled = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + eps)
    close(kernel.run(x, weight), scaled * (wide(weight) + offset), dtype)


def test_rms_norm_rounds_where_checkpoints_were_trained_to() -> None:
    """Without an offset the quotient is rounded before the weight multiplies it, with one only at the end."""
    x, weight = random(0, 40, 64, dtype=DType.BFLOAT16), random(1, 64, dtype=DType.BFLOAT16)
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    plain = table().choose(RMSNormSpec(hidden=64, eps=1e-6, dtype=DType.BFLOAT16)).run(x, weight)
    assert torch.equal(plain, weight * scaled.bfloat16())
    offset = table().choose(RMSNormSpec(hidden=64, eps=1e-6, dtype=DType.BFLOAT16, weight_offset=1.0)).run(x, weight)
    assert torch.equal(offset, (scaled * (weight.float() + 1)).bfloat16())
    assert not torch.equal(offset, (weight + 1) * scaled.bfloat16())


@FEW
@given(tokens=st.integers(0, 6), hidden=st.integers(1, 33), dtype=st.sampled_from(FLOATS))
def test_add_rms_norm(tokens: int, hidden: int, dtype: DType) -> None:
    x, residual, weight = (random(i, *s, dtype=dtype) for i, s in enumerate([(tokens, hidden)] * 2 + [(hidden,)]))
    norm = RMSNormSpec(hidden=hidden, eps=1e-6, dtype=dtype)
    y, total = table().choose(AddRMSNormSpec(norm=norm)).run(x, residual, weight)
    assert torch.equal(total, x + residual)
    exact = wide(total) / np.sqrt((wide(total) ** 2).mean(-1, keepdims=True) + 1e-6) * wide(weight)
    close(y, exact, dtype)


@FEW
@given(
    tokens=st.integers(0, 9),
    width=st.integers(1, 40),
    features=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    bias=st.booleans(),
    invariant=st.booleans(),
    dtype=st.sampled_from(FLOATS),
    stored=st.lists(st.sampled_from(FLOATS), min_size=3, max_size=3),
)
def test_merged_linear(
    tokens: int, width: int, features: list[int], bias: bool, invariant: bool, dtype: DType, stored: list[DType]
) -> None:
    parts = tuple(
        LinearPart(name=f"p{i}", out_features=count, scheme=Dense(stored=stored[i])) for i, count in enumerate(features)
    )
    spec = MergedLinearSpec(in_features=width, parts=parts, dtype=dtype, bias=bias)
    tensors = [random(i, count, width, dtype=stored[i]) for i, count in enumerate(features)]
    b, x = random(7, sum(features), dtype=dtype), random(8, tokens, width, dtype=dtype)
    kernel = table(batch_invariant=invariant).choose(spec)
    weights = kernel.bind(LinearWeights(parts=tuple({"weight": t} for t in tensors), bias=b if bias else None))
    joined = np.concatenate([wide(t.to(to_torch(dtype))) for t in tensors])
    exact = wide(x) @ joined.T + (wide(b) if bias else 0.0)
    close(kernel.run(x, weights), exact, dtype, units=4.0 + width / 4)
    assert spec.out_features == sum(features)


def test_batch_invariant_linear_is_bitwise_the_same_in_any_batch() -> None:
    spec = MergedLinearSpec(
        in_features=96, parts=(LinearPart(name="p", out_features=50, scheme=DENSE),), dtype=DType.FLOAT32
    )
    kernel = table(batch_invariant=True).choose(spec)
    weights = kernel.bind(LinearWeights(parts=({"weight": random(0, 50, 96)},)))
    x = random(1, 33, 96)
    whole = kernel.run(x, weights)
    for start, end in ((0, 1), (5, 6), (3, 20), (32, 33)):
        assert torch.equal(kernel.run(x[start:end], weights), whole[start:end])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1.0, math.sqrt(64)])
def test_embedding(dtype: DType, scale: float) -> None:
    weight = random(0, 11, 64)
    spec = EmbeddingSpec(vocab_size=11, hidden=64, scheme=DENSE, dtype=dtype, scale=scale)
    kernel = table().choose(spec)
    ids = torch.tensor([3, 0, 10, 3], dtype=torch.int32)
    found = kernel.run(ids, kernel.bind({"weight": weight}))
    assert torch.equal(found, weight[ids.long()].to(to_torch(dtype)) * scale)


def test_embedding_scale_is_rounded_to_the_dtype_first() -> None:
    scale = math.sqrt(2304)  # 48 exactly; sqrt(1152) is not representable
    odd = math.sqrt(1152)
    for value in (scale, odd):
        spec = EmbeddingSpec(vocab_size=4, hidden=8, scheme=DENSE, dtype=DType.BFLOAT16, scale=value)
        kernel, weight = table().choose(spec), random(0, 4, 8)
        found = kernel.run(torch.tensor([1], dtype=torch.int32), kernel.bind({"weight": weight}))
        rounded = torch.tensor(value, dtype=torch.bfloat16)
        assert torch.equal(found, weight[1:2].bfloat16() * rounded)


def _activation(name: str, x: np.ndarray) -> np.ndarray:
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activation_mul(activation: str, dtype: DType) -> None:
    x = random(0, 7, 24, dtype=dtype, scale=2.0)
    kernel = table().choose(ActivationMulSpec(features=12, activation=activation, dtype=dtype))
    gate, up = wide(x)[:, :12], wide(x)[:, 12:]
    close(kernel.run(x), _activation(activation, gate) * up, dtype)


def _gated(x: np.ndarray, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, activation: str) -> np.ndarray:
    return (_activation(activation, x @ wide(gate).T) * (x @ wide(up).T)) @ wide(down).T


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_mlp(activation: str) -> None:
    hidden, width = 20, 36
    gate, up, down, x = (
        random(0, width, hidden),
        random(1, width, hidden),
        random(2, hidden, width),
        random(3, 5, hidden),
    )
    gate_up = MergedLinearSpec(
        in_features=hidden,
        parts=tuple(LinearPart(name=n, out_features=width, scheme=DENSE) for n in ("gate", "up")),
        dtype=DType.FLOAT32,
    )
    last = MergedLinearSpec(
        in_features=width, parts=(LinearPart(name="down", out_features=hidden, scheme=DENSE),), dtype=DType.FLOAT32
    )
    kernel = table().choose(GatedMLPSpec(gate_up=gate_up, down=last, activation=activation))
    weights = kernel.bind(
        GatedMLPWeights(
            gate_up=LinearWeights(parts=({"weight": gate}, {"weight": up})),
            down=LinearWeights(parts=({"weight": down},)),
        )
    )
    close(kernel.run(x, weights), _gated(wide(x), gate, up, down, activation), DType.FLOAT32, units=200)


def test_add_rms_norm_then_reads_the_norm_of_the_sum() -> None:
    hidden, out = 20, 12
    x, residual, norm, weight = (
        random(i, *shape) for i, shape in enumerate(((5, hidden),) * 2 + ((hidden,), (out, hidden)))
    )
    linear = MergedLinearSpec(
        in_features=hidden, parts=(LinearPart(name="p", out_features=out, scheme=DENSE),), dtype=DType.FLOAT32
    )
    add = AddRMSNormSpec(norm=RMSNormSpec(hidden=hidden, eps=1e-5, dtype=DType.FLOAT32))
    kernel = table().choose(AddRMSNormThenSpec(norm=add, then=linear))
    held = kernel.bind(NormedWeights(norm=norm, then=LinearWeights(parts=({"weight": weight},))))
    y, total = kernel.run(x, residual, held)
    whole = wide(x) + wide(residual)
    rows = whole / np.sqrt((whole**2).mean(-1, keepdims=True) + 1e-5) * wide(norm)
    close(total, whole, DType.FLOAT32)
    close(y, rows @ wide(weight).T, DType.FLOAT32, units=200)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(4, 2, 9), (8, 8, 3), (5, 1, 1), (3, 2, 0)])
def test_moe_layer(experts: int, top_k: int, tokens: int, renormalize: bool, invariant: bool) -> None:
    hidden, width = 12, 20
    router, x = random(0, experts, hidden), random(1, tokens, hidden)
    gate, up, down = (
        random(2, experts, width, hidden),
        random(3, experts, width, hidden),
        random(4, experts, hidden, width),
    )
    spec = MoESpec(
        hidden=hidden,
        intermediate=width,
        num_experts=experts,
        top_k=top_k,
        renormalize=renormalize,
        activation="silu",
        gate=DENSE,
        up=DENSE,
        down=DENSE,
        dtype=DType.FLOAT32,
    )
    kernel = table(batch_invariant=invariant).choose(spec)
    parts: list[dict[str, Any]] = [{"weight": tensor} for tensor in (gate, up, down)]
    weights = kernel.bind(MoEWeights(router=router, gate=parts[0], up=parts[1], down=parts[2]))
    exact = np.zeros((tokens, hidden))
    for token in range(tokens):
        logits = wide(router) @ wide(x)[token]
        scores = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        best = np.argsort(-scores)[:top_k]
        total = scores[best].sum() if renormalize else 1.0
        for expert in best:
            exact[token] += (
                scores[expert] / total * _gated(wide(x)[token], gate[expert], up[expert], down[expert], "silu")
            )
    found = kernel.run(x, weights)
    close(found, exact, DType.FLOAT32, units=200)


# rope


def _rotated(x: np.ndarray, angles: np.ndarray, *, interleaved: bool, factor: float = 1.0) -> np.ndarray:
    """x: [tokens, heads, dim]; angles: [tokens, rotary_dim / 2]; pair by pair, as a complex product."""
    half, out = angles.shape[1], x.copy()
    turn = factor * np.exp(1j * angles)[:, None, :]
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    turned = (x[..., first] + 1j * x[..., second]) * turn
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


@FEW
@given(
    heads=st.integers(1, 4),
    half=st.integers(1, 16),
    still=st.sampled_from([0, 2, 8]),
    interleaved=st.booleans(),
    positions=st.lists(st.integers(0, 299), min_size=1, max_size=9),
)
def test_rope(heads: int, half: int, still: int, interleaved: bool, positions: list[int]) -> None:
    dim = 2 * half + still
    spec = RopeSpec(head_dim=dim, rotary_dim=2 * half, base=10000.0, max_positions=300, interleaved=interleaved)
    q, k = random(0, len(positions), heads, dim), random(1, len(positions), 1, dim)
    place = torch.tensor([positions], dtype=torch.int32)
    found = table().choose(spec).run(q, k, place, rope_table(spec))
    angles = np.array(positions)[:, None] * 10000.0 ** (-np.arange(half) / half)
    for before, after in zip((q, k), found, strict=True):
        np.testing.assert_allclose(wide(after), _rotated(wide(before), angles, interleaved=interleaved), atol=2e-4)


def test_rope_takes_pairs_from_several_axes() -> None:
    spec = RopeSpec(head_dim=12, rotary_dim=12, base=100.0, max_positions=50, axis_sections=(1, 2, 3))
    q, positions = random(0, 4, 2, 12), torch.tensor([[0, 1, 2, 3], [9, 8, 7, 6], [20, 30, 40, 49]])
    found, _ = table().choose(spec).run(q, q, positions, rope_table(spec))
    frequencies = 100.0 ** (-np.arange(6) / 6)
    axis = np.array([0, 1, 1, 2, 2, 2])
    angles = positions.numpy()[axis].T * frequencies
    np.testing.assert_allclose(wide(found), _rotated(wide(q), angles, interleaved=False), atol=1e-5)


SCALINGS = {
    "default": (None, {"rope_type": "default"}),
    "linear": (RopeScaling(kind="linear", factor=3.0), {"rope_type": "linear", "factor": 3.0}),
    "llama3": (
        RopeScaling(kind="llama3", factor=8.0, original_max_positions=512, low_freq_factor=1.0, high_freq_factor=4.0),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ),
    "yarn": (
        RopeScaling(kind="yarn", factor=4.0, original_max_positions=256, attention_factor=0.1 * math.log(4.0) + 1.0),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    ),
    "yarn, narrow ramp": (
        RopeScaling(
            kind="yarn", factor=16.0, original_max_positions=64, beta_fast=2.0, beta_slow=1.5, attention_factor=1.2
        ),
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 2.0,
            "beta_slow": 1.5,
            "attention_factor": 1.2,
        },
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize(("dim", "base"), [(16, 10000.0), (64, 500000.0), (128, 1e6)])
def test_rope_table_equals_transformers(name: str, dim: int, base: float) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling, parameters = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        max_position_embeddings=1024,
        rope_parameters={**parameters, "rope_theta": base},
    )
    spec = RopeSpec(head_dim=dim, rotary_dim=dim, base=base, max_positions=1024, scaling=scaling)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, 1), torch.arange(1024)[None])
    half = dim // 2
    found = rope_table(spec)
    torch.testing.assert_close(found[:, :half], cos[0, :, :half], rtol=0, atol=1e-4)
    torch.testing.assert_close(found[:, half:], sin[0, :, :half], rtol=0, atol=1e-4)


def test_rope_factors_divide_each_frequency() -> None:
    factors = (1.0, 2.0, 4.0, 8.0)
    spec = RopeSpec(
        head_dim=8, rotary_dim=8, base=50.0, max_positions=20, scaling=RopeScaling(kind="factors", factors=factors)
    )
    angles = np.arange(20)[:, None] * 50.0 ** (-np.arange(4) / 4) / np.array(factors)
    found = wide(rope_table(spec))
    np.testing.assert_allclose(found, np.concatenate((np.cos(angles), np.sin(angles)), axis=1), atol=1e-6)
    with pytest.raises(ValueError, match="unknown rope scaling 'odd'"):
        rope_table(RopeSpec(head_dim=8, rotary_dim=8, base=5.0, max_positions=2, scaling=RopeScaling(kind="odd")))


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_fp8_channel_linear_rounds_weights_a_channel_and_activations_a_token(tokens: int) -> None:
    weight, x = torch.randn(24, 64) * torch.logspace(-3, 2, 24)[:, None], torch.randn(tokens, 64) * 7
    values, scale = quantize_fp8(weight)
    assert values.dtype == torch.float8_e4m3fn
    rounded = values.double() * scale.double()[:, None]
    assert ((rounded - weight).abs() <= weight.abs() / 15 + scale[:, None] / 100).all()
    spec = MergedLinearSpec(
        in_features=64,
        parts=(LinearPart(name="p", out_features=24, scheme=FP8Channel()),),
        dtype=DType.FLOAT32,
    )
    kernel = OpTable(platform="reference").choose(spec)
    found = kernel.run(x, kernel.bind(LinearWeights(parts=({"weight": values, "scale": scale},))))
    held, unit = quantize_fp8(x)
    wanted = (held.double() * unit.double()[:, None]) @ rounded.T
    torch.testing.assert_close(found.double(), wanted, atol=1e-3, rtol=1e-4)
