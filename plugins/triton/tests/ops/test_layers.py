"""Norms, gated activation, rotation with KV write, and the rows' memory against the contract's references."""

from __future__ import annotations

import pytest
import torch
from e4m3_values import codes, edges, held_of
from exact_float8 import exact_float8
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_platforms.batch import NUM_ROW_COLUMNS, HostBatch, RowState, StepInputs
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel, No
from tenon_platforms.ops.linear_reference import quantize_fp8
from tenon_platforms.ops.mlp import ActivationMulSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, LayerNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeSpec
from tenon_platforms.ops.rope_reference import qk_norm_rope_kv_write as reference_rope
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.table import OpTable
from tenon_platforms.ops.weights import NormWeights
from tenon_platforms.shapes import ShapeKey
from tenon_triton.attention.kv_cache import LAYOUT_ID
from tenon_triton.ops import float8, layer_norm, mlp, norm, rope_kv, rows

pytestmark = pytest.mark.unit
ANY = settings(max_examples=8, deadline=None)
TYPES = {torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16}


def reference_of(spec: Spec) -> Kernel:
    return OpTable(platform="reference").choose(spec)


def made(kernel: Kernel | No) -> Kernel:
    assert isinstance(kernel, Kernel)
    return kernel


def steps_apart(found: Tensor, wanted: Tensor) -> None:
    """Equal but for the last bit."""
    tolerance = 2e-6 if wanted.dtype == torch.float32 else 2e-3
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


@ANY
@given(
    tokens=st.integers(0, 5),
    hidden=st.sampled_from([1, 7, 64, 127, 128, 129, 1000]),
    offset=st.sampled_from([0.0, 1.0]),
    size=st.sampled_from([1e-3, 1.0, 100.0]),
    dtype=st.sampled_from(list(TYPES)),
)
def test_norms(tokens: int, hidden: int, offset: float, size: float, dtype: torch.dtype) -> None:
    spec = RMSNormSpec(hidden=hidden, eps=1e-6, dtype=TYPES[dtype], weight_offset=offset)
    x, more = (torch.randn(tokens, hidden).mul(size).to(dtype) for _ in range(2))
    weight = torch.randn(hidden).to(dtype)
    steps_apart(made(norm.rms_norm(spec)).run(x, weight), reference_of(spec).run(x, weight))
    both = AddRMSNormSpec(norm=spec)
    y, total = made(norm.add_rms_norm(both)).run(x, more, weight)
    wanted, wanted_total = reference_of(both).run(x, more, weight)
    assert torch.equal(total, wanted_total)
    steps_apart(y, wanted)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("hidden", [1, 127, 384])
def test_layer_norms(hidden: int, dtype: torch.dtype) -> None:
    spec = LayerNormSpec(hidden=hidden, eps=1e-5, dtype=TYPES[dtype])
    weights = NormWeights(weight=torch.randn(hidden).to(dtype), bias=torch.randn(hidden).to(dtype))
    for tokens in (0, 1, 5):
        x = torch.randn(tokens, hidden).to(dtype) * 3 + 7
        steps_apart(made(layer_norm.layer_norm(spec)).run(x, weights), reference_of(spec).run(x, weights))
    across = torch.randn(hidden, 4).to(dtype).T  # rows that are not contiguous
    steps_apart(made(layer_norm.layer_norm(spec)).run(across, weights), reference_of(spec).run(across, weights))


def test_norms_wider_than_a_block_and_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "WIDEST_BLOCK", 64)
    spec = RMSNormSpec(hidden=150, eps=1e-6, dtype=DType.FLOAT32)
    x, more, weight = torch.randn(2, 3, 150), torch.randn(4, 150), torch.randn(150)
    steps_apart(made(norm.rms_norm(spec)).run(x, weight), reference_of(spec).run(x, weight))
    y, total = made(norm.add_rms_norm(AddRMSNormSpec(norm=spec))).run(more, more, weight)
    steps_apart(y, reference_of(spec).run(more + more, weight))
    packed, total = norm.add_rms_norm_float8(spec, more, more, weight)
    assert torch.equal(total, more + more)
    like_float8(packed, y)


def like_float8(found: float8.Float8Rows, wanted: Tensor) -> None:
    """The interpreter loses carries into the exponent, so mantissas of zero are left out."""
    values, scale = quantize_fp8(wanted)
    torch.testing.assert_close(found.scale, scale, atol=1e-9, rtol=1e-5)
    fine = (values.view(torch.uint8) & 7).ne(0) & values.float().abs().ge(0.016)
    differ = found.values.float().ne(values.float()) & fine
    assert float(differ.float().mean()) < 0.02  # ties are broken up instead of to even


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("features", [1, 130, 1025])
def test_activations(kind: str, dtype: torch.dtype, features: int) -> None:
    spec = ActivationMulSpec(features=features, activation=kind, dtype=TYPES[dtype])
    for tokens in (0, 1, 3):
        x = torch.randn(tokens, 2 * features).to(dtype)
        steps_apart(made(mlp.activation_mul(spec)).run(x), reference_of(spec).run(x))


def test_float8_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 300)
    x[2] = 0
    like_float8(float8.quantize(x), x)
    spec = RMSNormSpec(hidden=300, eps=1e-6, dtype=DType.FLOAT32)
    like_float8(norm.rms_norm_float8(spec, x, torch.ones(300)), reference_of(spec).run(x, torch.ones(300)))
    gates = torch.randn(3, 300)
    like_float8(mlp.multiply_float8(gates, "silu"), mlp.multiply(gates, "silu"))
    monkeypatch.setattr(mlp, "WHOLE_ROW", 64)
    like_float8(mlp.multiply_float8(gates, "silu"), mlp.multiply(gates, "silu"))


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("width", [1, 7, 64, 300, 4096, 4097, 14336, 16384, 20000])
def test_rows_read_once_are_quantized_as_rows_read_twice(
    width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = torch.randn(4, width + 24) * torch.tensor([[1.0], [0.0], [3e-6], [300.0]])
    x = wide.to(dtype)[:, 3 : 3 + width]
    found = float8.quantize(x)
    monkeypatch.setattr(float8, "WHOLE_ROW", 0)
    twice = float8.quantize(x)
    assert torch.equal(found.values.view(torch.uint8), twice.values.view(torch.uint8))
    assert torch.equal(found.scale, twice.scale)
    largest = x.float().abs().amax(dim=1)
    assert torch.equal(found.scale, torch.where(largest > 0, largest / float8.FP8_MAX, 1.0))
    if dtype == torch.float32:  # of halves more are ties
        like_float8(found, x)


class Flat:
    """Where the reference writes: [2, slots, kv heads, head_dim]."""

    def write_kv(self, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        cache[0][slots.long()], cache[1][slots.long()] = key, value


@ANY
@given(
    tokens=st.integers(0, 9),
    heads=st.sampled_from([(1, 1), (6, 2), (9, 3), (8, 8)]),
    dims=st.sampled_from([(16, 16), (64, 32), (24, 12), (8, None), (128, 128)]),
    offset=st.sampled_from([None, 0.0, 1.0]),
    dtype=st.sampled_from(list(TYPES)),
)
def test_rotation_and_write(
    tokens: int, heads: tuple[int, int], dims: tuple[int, int | None], offset: float | None, dtype: torch.dtype
) -> None:
    (num, kv), (dim, rotary) = heads, dims
    part = None if offset is None else RMSNormSpec(hidden=dim, eps=1e-6, dtype=TYPES[dtype], weight_offset=offset)
    rope = None if rotary is None else RopeSpec(head_dim=dim, rotary_dim=rotary, base=1e4, max_positions=64)
    spec = QKNormRopeKVWriteSpec(num_heads=num, num_kv_heads=kv, head_dim=dim, dtype=TYPES[dtype],
                                 layout_id=LAYOUT_ID, q_norm=part, k_norm=part, rope=rope)  # fmt: skip
    qkv = torch.randn(tokens, (num + 2 * kv) * dim).to(dtype)
    positions = torch.randint(0, 64, (1, tokens), dtype=torch.int32)
    slots = (torch.randperm(32)[:tokens] + 16).int()
    weights = [None if part is None else torch.randn(dim).to(dtype) for _ in range(2)]
    angles = None if rope is None else rope_table(rope)
    cache, flat = torch.zeros(3, 2, kv, 16, dim, dtype=dtype), torch.zeros(2, 48, kv, dim, dtype=dtype)
    query = made(rope_kv.qk_norm_rope_kv_write(spec)).run(qkv, positions, angles, *weights, cache, slots)
    reference = reference_rope(spec, OpTable(platform="reference"), Flat())  # type: ignore[arg-type]
    steps_apart(query, reference.run(qkv, positions, angles, *weights, flat, slots))
    steps_apart(cache.permute(1, 0, 3, 2, 4).reshape(2, 48, kv, dim), flat)


@pytest.mark.parametrize("dtype", list(TYPES))
def test_an_e4m3_cache_gets_what_the_reference_writes(dtype: torch.dtype) -> None:
    """Keys after norm and rotation, values as they are: rounded to even, saturated, NaN kept; q is not rounded."""
    heads, kv, dim = 6, 2, 16
    part = RMSNormSpec(hidden=dim, eps=1e-6, dtype=TYPES[dtype])
    rope = RopeSpec(head_dim=dim, rotary_dim=8, base=1e4, max_positions=64)
    spec = QKNormRopeKVWriteSpec(num_heads=heads, num_kv_heads=kv, head_dim=dim, dtype=TYPES[dtype],
                                 layout_id=LAYOUT_ID, q_norm=part, k_norm=part, rope=rope)  # fmt: skip
    values = edges().to(dtype)
    tokens = len(values) // (kv * dim)
    qkv = torch.randn(tokens, heads + 2 * kv, dim).to(dtype)
    qkv[:, -kv:] = values[-tokens * kv * dim :].view(tokens, kv, dim)
    weights = [torch.randn(dim).to(dtype), torch.randn(dim).to(dtype) * 400]
    positions, slots = torch.randint(0, 64, (1, tokens), dtype=torch.int32), torch.randperm(48)[:tokens].int() + 16
    cache, flat = torch.zeros(4, 2, kv, 16, dim, dtype=torch.float8_e4m3fn), torch.zeros(2, 64, kv, dim, dtype=dtype)
    given = (qkv.flatten(1), positions, rope_table(rope), *weights)
    with exact_float8():
        query = made(rope_kv.qk_norm_rope_kv_write(spec)).run(*given, cache, slots)
    wanted = reference_rope(spec, OpTable(platform="reference"), Flat()).run(*given, flat, slots)  # type: ignore[arg-type]
    steps_apart(query, wanted)
    keys, stored = cache.permute(1, 0, 3, 2, 4).reshape(2, 64, kv, dim)
    assert torch.equal(codes(stored), held_of(flat[1]))
    assert bool((flat[0].abs() > 448).any()) and int(codes(keys).eq(0x7E).sum()) > 0
    apart = (codes(keys).int() - held_of(flat[0]).int()).abs()
    assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) < 0.01, "but where a step apart crosses a tie"


@pytest.mark.parametrize("change", [{"layout_id": "other"}, {"interleaved": True}])
def test_rotations_left_to_the_parts(change: dict[str, object]) -> None:
    rope = RopeSpec(head_dim=8, rotary_dim=8, base=1e4, max_positions=8, interleaved=bool(change.get("interleaved")))
    layout = str(change.get("layout_id", LAYOUT_ID))
    spec = QKNormRopeKVWriteSpec(
        num_heads=2, num_kv_heads=1, head_dim=8, dtype=DType.FLOAT32, layout_id=layout, rope=rope
    )
    assert isinstance(rope_kv.qk_norm_rope_kv_write(spec), No)


def row_state(num_rows: int, num_groups: int, num_blocks: int) -> RowState:
    return RowState(
        last_tokens=torch.randint(0, 1000, (num_rows + 1,), dtype=torch.int32),
        params=torch.randint(0, 9, (num_rows + 1, NUM_ROW_COLUMNS), dtype=torch.int32),
        block_tables=torch.randint(1, 50, (num_groups, num_rows + 1, num_blocks), dtype=torch.int32),
        counts=torch.zeros(1),
        edits=torch.zeros(1),
    )


@ANY
@given(valid=st.integers(0, 140), padding=st.integers(0, 5), sizes=st.sampled_from([(16,), (16, 16), (16, 64, 8)]))
def test_prepare_inputs(valid: int, padding: int, sizes: tuple[int, ...]) -> None:
    tokens, state = valid + padding, row_state(6, len(sizes), 30)
    token_ids = torch.randint(-1, 3, (tokens,), dtype=torch.int32)
    empty = torch.zeros(0, dtype=torch.int32)
    host = HostBatch(num_tokens=valid, num_rows=3, num_logits=0, num_decodes=0, query_lens=empty.numpy(),
                     seq_lens=empty.numpy(), max_query=1, max_seq=1)  # fmt: skip
    inputs = StepInputs(
        key=ShapeKey(tokens=tokens, rows=3, logits=0, max_query=1, blocks=30),
        host=host,
        token_ids=token_ids,
        positions=torch.randint(0, 30 * min(sizes), (1, tokens), dtype=torch.int32),
        token_rows=torch.randint(0, 3, (tokens,), dtype=torch.int32),
        rows=torch.tensor([4, 0, 6], dtype=torch.int32),
        query_starts=empty,
        seq_lens=empty,
        logit_index=empty,
        logit_rows=empty,
        targets=empty,
        write_places=empty,
        write_blocks=empty,
        num_valid=torch.tensor([valid, 3, 0], dtype=torch.int32),
    )
    spec = PrepareInputsSpec(block_sizes=sizes)
    found_ids, found_slots = made(rows.prepare_inputs(spec)).run(inputs, state)
    wanted_ids, wanted_slots = reference_of(spec).run(inputs, state)
    assert torch.equal(found_ids, wanted_ids)
    assert len(found_slots) == len(sizes)
    for found, wanted in zip(found_slots, wanted_slots, strict=True):
        assert found.dtype == torch.int32
        assert torch.equal(found, wanted.int())


@pytest.mark.parametrize(("num_places", "num_rows"), [(0, 0), (3, 0), (0, 2), (130, 7)])
def test_row_writes(num_places: int, num_rows: int) -> None:
    state, other = (row_state(200, 2, 10) for _ in range(2))
    other.block_tables, other.params = state.block_tables.clone(), state.params.clone()
    places = torch.randperm(state.block_tables.numel())[:num_places].int()
    blocks = torch.randint(0, 99, (num_places,), dtype=torch.int32)
    chosen = torch.randperm(201)[:num_rows].int()
    fresh = torch.randint(0, 99, (num_rows, NUM_ROW_COLUMNS), dtype=torch.int32)
    spec = RowWritesSpec(num_groups=2)
    made(rows.row_writes(spec)).run(state, places, blocks, chosen, fresh)
    reference_of(spec).run(other, places, blocks, chosen, fresh)
    assert torch.equal(state.block_tables, other.block_tables)
    assert torch.equal(state.params, other.params)
