"""Norms, activation, rotation with KV write and mixtures of experts, against float64 or the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_cpu import kv_cache
from tenon_cpu.attention import CPUAttention
from tenon_platforms.attention import AttentionKernel
from tenon_platforms.dtypes import DType
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.linear import Dense
from tenon_platforms.ops.mlp import ActivationMulSpec
from tenon_platforms.ops.mlp_reference import activation_mul as reference_activation
from tenon_platforms.ops.moe import MoESpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import MoEWeights

pytestmark = pytest.mark.unit
ANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def norm_truth(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * (weight.double() + offset)


@ANY
@given(
    tokens=st.integers(0, 20),
    hidden=st.integers(1, 200),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 1.0]),
)
def test_norms(make_table: Any, tokens: int, hidden: int, size: float, offset: float) -> None:
    spec = RMSNormSpec(hidden=hidden, eps=1e-6, dtype=DType.FLOAT32, weight_offset=offset)
    x, residual, weight = torch.randn(tokens, hidden) * size, torch.randn(tokens, hidden), torch.randn(hidden)
    table = make_table()
    plain, added = table.choose(spec), table.choose(AddRMSNormSpec(norm=spec))
    assert all(choice.source == "cpu" for choice in table.choices)
    found = plain.run(x, plain.bind(weight))
    torch.testing.assert_close(found.double(), norm_truth(x, weight, 1e-6, offset), atol=1e-5, rtol=1e-5)
    kept = x.clone(), residual.clone()
    y, total = added.run(x, residual, added.bind(weight))
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(y.double(), norm_truth(x + residual, weight, 1e-6, offset), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [RMSNormSpec, AddRMSNormSpec])
def test_half_norms_round_as_the_reference(make_table: Any, kind: type) -> None:
    spec = RMSNormSpec(hidden=8, eps=1e-6, dtype=DType.BFLOAT16)
    table = make_table()
    table.choose(spec if kind is RMSNormSpec else AddRMSNormSpec(norm=spec))
    assert "float32 only" in table.choices[0].refused[0][1]


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_activation(make_table: Any, activation: str, tokens: int) -> None:
    spec = ActivationMulSpec(features=24, activation=activation, dtype=DType.FLOAT32)
    x = torch.randn(tokens, 48)
    kept = x.clone()
    found = make_table().choose(spec).run(x)
    torch.testing.assert_close(found, reference_activation(spec, OpTable(platform="reference")).run(kept))
    assert torch.equal(x, kept)


def attention_of(table: OpTable, heads: int, kv_heads: int, dim: int) -> CPUAttention:
    spec = AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        scale=1.0,
        dtype=DType.FLOAT32,
        kv_dtype=DType.FLOAT32,
    )
    kernel = table.choose(spec, torch.device("cpu"))
    assert isinstance(kernel, AttentionKernel)
    assert isinstance(kernel.backend, CPUAttention)
    return kernel.backend


@ANY
@given(
    tokens=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (6, 2), (9, 3)]),
    dim=st.sampled_from([8, 64]),
    normed=st.sampled_from([None, 0.0, 1.0]),
    rotates=st.booleans(),
)
def test_rotation_and_write(
    make_table: Any, tokens: int, heads: tuple[int, int], dim: int, normed: float | None, rotates: bool
) -> None:
    norm = None
    if normed is not None:
        norm = RMSNormSpec(hidden=dim, eps=1e-6, dtype=DType.FLOAT32, weight_offset=normed)
    rope = RopeSpec(head_dim=dim, rotary_dim=dim, base=1e4, max_positions=64) if rotates else None
    table = make_table()
    backend = attention_of(table, *heads, dim)
    spec = QKNormRopeKVWriteSpec(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=dim,
        dtype=DType.FLOAT32,
        layout_id=kv_cache.LAYOUT_ID,
        q_norm=norm,
        k_norm=norm,
        rope=rope,
    )
    kernel = table.choose(spec, backend)
    assert table.choices[-1].source == "cpu"
    cache = backend.allocate(4, 16, 1)[0]
    qkv = torch.randn(tokens, (heads[0] + 2 * heads[1]) * dim)
    slots = (torch.randperm(48)[:tokens] + 16).int()
    positions = torch.randint(0, 64, (1, tokens), dtype=torch.int32)
    q_weight, k_weight = (torch.randn(dim), torch.randn(dim)) if norm else (None, None)
    angles = rope_table(rope) if rope else None
    query = kernel.run(qkv, positions, angles, q_weight, k_weight, cache, slots)

    q, k, v = qkv.double().view(tokens, -1, dim).split([heads[0], heads[1], heads[1]], dim=1)
    if norm and q_weight is not None and k_weight is not None:
        q, k = norm_truth(q, q_weight, 1e-6, norm.weight_offset), norm_truth(k, k_weight, 1e-6, norm.weight_offset)
    if angles is not None:
        cos, sin = (part[positions[0].long()][:, None].double() for part in angles.chunk(2, dim=-1))

        def turn(x: Tensor) -> Tensor:
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

        q, k = turn(q), turn(k)
    torch.testing.assert_close(query.double(), q, atol=1e-5, rtol=1e-5)
    stored = backend.export_blocks(cache, torch.arange(4, dtype=torch.int32)).transpose(0, 1).flatten(1, 2)
    torch.testing.assert_close(stored[0, slots.long()].double(), k, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(stored[1, slots.long()].double(), v, atol=1e-6, rtol=1e-6)
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[slots.long()] = False
    assert not stored[:, untouched].any()


def test_a_new_step_forgets_the_last(make_table: Any, make_batch: Any) -> None:
    """Positions may be the same tensor with other values in the next step; planning it must be enough."""
    table = make_table()
    backend = attention_of(table, 2, 1, 8)
    spec = QKNormRopeKVWriteSpec(
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        dtype=DType.FLOAT32,
        layout_id=kv_cache.LAYOUT_ID,
        rope=RopeSpec(head_dim=8, rotary_dim=8, base=1e4, max_positions=64),
    )
    kernel, cache = table.choose(spec, backend), backend.allocate(4, 16, 1)[0]
    assert spec.rope is not None
    angles, qkv = rope_table(spec.rope), torch.randn(1, 32)
    positions, slots = torch.tensor([[3]], dtype=torch.int32), torch.tensor([19], dtype=torch.int32)
    first = kernel.run(qkv, positions, angles, None, None, cache, slots)
    positions[0, 0], slots[0] = 9, 25
    backend.plan(make_batch([1], [10], [[1]], 16))
    second = kernel.run(qkv, positions, angles, None, None, cache, slots)
    assert not torch.allclose(first, second)
    assert cache[1].view(4, 16, 8)[1, 9].any()


@pytest.mark.parametrize(
    "rope",
    [
        RopeSpec(head_dim=8, rotary_dim=4, base=1e4, max_positions=8),
        RopeSpec(head_dim=8, rotary_dim=8, base=1e4, max_positions=8, interleaved=True),
    ],
)
def test_other_rotations_are_left_to_the_parts(make_table: Any, rope: RopeSpec) -> None:
    table = make_table()
    backend = attention_of(table, 2, 1, 8)
    spec = QKNormRopeKVWriteSpec(
        num_heads=2, num_kv_heads=1, head_dim=8, dtype=DType.FLOAT32, layout_id=kv_cache.LAYOUT_ID, rope=rope
    )
    table.choose(spec, backend)
    assert next(choice for choice in table.choices if choice.spec == spec).source == "decomposed"


@ANY
@given(
    tokens=st.integers(0, 12),
    experts=st.integers(1, 6),
    renormalize=st.booleans(),
    stored=st.sampled_from([DType.FLOAT32, DType.BFLOAT16]),
    data=st.data(),
)
def test_experts(make_table: Any, tokens: int, experts: int, renormalize: bool, stored: DType, data: Any) -> None:
    top_k = data.draw(st.integers(1, experts))
    scheme = Dense(stored=stored)
    spec = MoESpec(
        hidden=24,
        intermediate=16,
        num_experts=experts,
        top_k=top_k,
        renormalize=renormalize,
        activation="silu",
        gate=scheme,
        up=scheme,
        down=scheme,
        dtype=DType.FLOAT32,
    )
    kind = torch.bfloat16 if stored == DType.BFLOAT16 else torch.float32
    gate, up = (torch.randn(experts, 16, 24).mul_(0.3).to(kind) for _ in range(2))
    down, router = torch.randn(experts, 24, 16).mul_(0.3).to(kind), torch.randn(experts, 24)
    table = make_table()
    kernel = table.choose(spec)
    assert table.choices[0].source == "cpu"
    weights = MoEWeights(router=router, gate={"weight": gate}, up={"weight": up}, down={"weight": down})
    x = torch.randn(tokens, 24)
    found = kernel.run(x, kernel.bind(weights))

    scores = (x @ router.T).softmax(-1)
    shares, chosen = scores.topk(top_k, dim=-1)
    shares = (shares / shares.sum(-1, keepdim=True) if renormalize else shares).double()
    wanted = torch.zeros(tokens, 24, dtype=torch.float64)
    for token in range(tokens):
        for share, expert in zip(shares[token], chosen[token].tolist(), strict=True):
            row = x[token].double()
            inner = torch.nn.functional.silu(gate[expert].double() @ row) * (up[expert].double() @ row)
            wanted[token] += share * (down[expert].double() @ inner)
    torch.testing.assert_close(found.double(), wanted, atol=2e-5, rtol=1e-4)
