"""Native norms, activations, rotation and sampling against float64 or the contract's references, on every ISA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tenon_cpu import native
from tenon_cpu.native_attention import NativeAttention
from tenon_cpu.ops import native_layers, native_rows
from tenon_platforms.batch import NUM_ROW_COLUMNS, HostBatch, RowColumn, RowState, SamplingBatch, StepInputs
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import Kernel
from tenon_platforms.noise import gumbel, sequence_key, token_bits
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.mlp import ActivationMulSpec
from tenon_platforms.ops.norm import AddRMSNormSpec, RMSNormSpec
from tenon_platforms.ops.rope import QKNormRopeKVWriteSpec, RopeSpec
from tenon_platforms.ops.rope_reference import rope_table
from tenon_platforms.ops.rows import PrepareInputsSpec, RowWritesSpec
from tenon_platforms.ops.rows_reference import prepare_inputs as reference_prepare
from tenon_platforms.ops.sampling import SamplerSpec, TokenLogprobsSpec
from tenon_platforms.ops.sampling_reference import sampler as reference_sampler
from tenon_platforms.ops.sampling_reference import token_logprobs as reference_logprobs
from tenon_platforms.ops.table import OpTable
from tenon_platforms.shapes import SamplingMode, ShapeKey
from tenon_platforms.torch_dtypes import to_torch

pytestmark = [pytest.mark.unit, pytest.mark.skipif(native.library() is None, reason="no native library")]
ISAS = native.ISAS[: native.ISAS.index(native.best_isa()) + 1] if native.library() else ()
ANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FLOATS = [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16]
UNIT = {DType.FLOAT32: 2.0**-22, DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}  # one rounding and room
TABLE = OpTable(platform="reference")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native.set_isa(request.param)
    native.set_threads(2)
    yield request.param
    native.set_isa("auto")


def kernel_of(answer: Any) -> Kernel:
    assert isinstance(answer, Kernel), answer
    return answer


def norm_truth(x: Tensor, weight: Tensor, offset: float) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (weight.double() + offset)


@ANY
@given(
    tokens=st.integers(0, 40),
    hidden=st.integers(1, 700),
    size=st.sampled_from([1e-3, 1.0, 1e2]),
    offset=st.sampled_from([0.0, 1.0]),
    dtype=st.sampled_from(FLOATS),
)
def test_norms(isa: str, tokens: int, hidden: int, size: float, offset: float, dtype: DType) -> None:
    spec = RMSNormSpec(hidden=hidden, eps=1e-6, dtype=dtype, weight_offset=offset)
    kind = to_torch(dtype)
    x, residual = (torch.randn(tokens, hidden).mul(size).to(kind) for _ in range(2))
    weight = torch.randn(hidden).to(kind)
    plain = kernel_of(native_layers.rms_norm(spec))
    added = kernel_of(native_layers.add_rms_norm(AddRMSNormSpec(norm=spec)))
    unit = 3 * UNIT[dtype] + hidden * 2.0**-24
    wanted = norm_truth(x, weight, offset)
    assert bool(((plain.run(x, weight).double() - wanted).abs() <= unit * wanted.abs() + 1e-7).all())
    kept = x.clone(), residual.clone()
    y, total = added.run(x, residual, weight)
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])
    assert torch.equal(total, x + residual)
    wanted = norm_truth(total, weight, offset)
    assert bool(((y.double() - wanted).abs() <= unit * wanted.abs() + 1e-7).all())


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("tokens", "width"), [(0, 8), (1, 24), (9, 37), (3, 30000)])
def test_activation(isa: str, activation: str, dtype: DType, tokens: int, width: int) -> None:
    spec = ActivationMulSpec(features=width, activation=activation, dtype=dtype)
    x = torch.randn(tokens, 2 * width).mul(6).to(to_torch(dtype))
    found = kernel_of(native_layers.activation_mul(spec)).run(x).double()
    gate, up = x.double().chunk(2, dim=-1)
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "relu": torch.nn.functional.relu,
    }
    wanted = functions[activation](gate) * up
    # the exponent of GELU's tanh form grows as x^3 and with it its rounding; half types lose small results
    bound = (2.5 * UNIT[dtype] + 2.0**-18) * wanted.abs() + (6e-8 * up.abs() + 6e-8 if dtype == DType.FLOAT16 else 1e-7)
    assert bool(((found - wanted).abs() <= bound).all())


@ANY
@given(
    tokens=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (6, 2), (9, 3)]),
    dim=st.sampled_from([16, 64, 80]),
    normed=st.sampled_from([None, 0.0, 1.0]),
    rotary=st.sampled_from([None, "all", "part", "pairs"]),
    dtype=st.sampled_from([DType.FLOAT32, DType.BFLOAT16]),
    kv_dtype=st.sampled_from(FLOATS),
)
def test_rotation_and_write(
    isa: str,
    tokens: int,
    heads: tuple[int, int],
    dim: int,
    normed: float | None,
    rotary: str | None,
    dtype: DType,
    kv_dtype: DType,
) -> None:
    kind = to_torch(dtype)
    norm = None if normed is None else RMSNormSpec(hidden=dim, eps=1e-6, dtype=dtype, weight_offset=normed)
    rope = None
    if rotary is not None:
        turning = dim // 2 if rotary == "part" else dim
        rope = RopeSpec(head_dim=dim, rotary_dim=turning, base=1e4, max_positions=64, interleaved=rotary == "pairs")
    shape = {"num_heads": heads[0], "num_kv_heads": heads[1], "head_dim": dim}
    backend = NativeAttention(AttentionSpec(**shape, scale=1.0, dtype=dtype, kv_dtype=kv_dtype), Device())
    spec = QKNormRopeKVWriteSpec(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=dim,
        dtype=dtype,
        layout_id=backend.layout.id,
        q_norm=norm,
        k_norm=norm,
        rope=rope,
    )
    cache = backend.allocate(4, 16, 1)[0]
    qkv = torch.randn(tokens, (heads[0] + 2 * heads[1]) * dim).to(kind)
    slots = (torch.randperm(48)[:tokens] + 16).int()
    positions = torch.randint(0, 64, (1, tokens), dtype=torch.int32)
    weights = (torch.randn(dim).to(kind), torch.randn(dim).to(kind)) if norm else (None, None)
    angles = rope_table(rope) if rope else None
    query = kernel_of(native_layers.qk_norm_rope_kv_write(spec)).run(qkv, positions, angles, *weights, cache, slots)

    q, k, v = qkv.double().view(tokens, -1, dim).split([heads[0], heads[1], heads[1]], dim=1)
    if norm and weights[0] is not None and weights[1] is not None:
        q, k = norm_truth(q, weights[0], norm.weight_offset), norm_truth(k, weights[1], norm.weight_offset)
    if angles is not None and rope is not None:
        cos, sin = (part[positions[0].long()][:, None].double() for part in angles.chunk(2, dim=-1))

        def turn(x: Tensor) -> Tensor:
            moving, still = x[..., : rope.rotary_dim], x[..., rope.rotary_dim :]
            a, b = (moving[..., 0::2], moving[..., 1::2]) if rope.interleaved else moving.chunk(2, dim=-1)
            parts = (a * cos - b * sin, b * cos + a * sin)
            moved = torch.stack(parts, dim=-1).flatten(-2) if rope.interleaved else torch.cat(parts, dim=-1)
            return torch.cat((moved, still), dim=-1)

        q, k = turn(q), turn(k)
    unit = 4 * UNIT[dtype] + 2.0**-18
    torch.testing.assert_close(query.double(), q, atol=unit * float(q.abs().amax()), rtol=0)
    stored = backend.export_blocks(cache, torch.arange(4, dtype=torch.int32)).transpose(0, 1).flatten(1, 2)
    unit += UNIT[kv_dtype]
    torch.testing.assert_close(stored[0, slots.long()].double(), k, atol=unit * float(k.abs().amax()), rtol=0)
    assert torch.equal(stored[1, slots.long()], v.to(kind).to(stored.dtype))
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[slots.long()] = False
    assert not stored[:, untouched].any()


def test_inputs_are_prepared_as_by_the_reference(isa: str) -> None:
    spec = PrepareInputsSpec(block_sizes=(16, 16))
    state = RowState(
        last_tokens=torch.randint(0, 99, (6,), dtype=torch.int32),
        params=torch.zeros(6, NUM_ROW_COLUMNS, dtype=torch.int32),
        block_tables=torch.randint(1, 99, (2, 6, 5), dtype=torch.int32),
        counts=torch.zeros(1, 2, 8, dtype=torch.int32),
        edits=torch.zeros(1, 2, 8),
    )
    empty = torch.zeros(0, dtype=torch.int32)
    inputs = StepInputs(
        key=ShapeKey(tokens=7, rows=3, logits=3, max_query=5, blocks=5),
        host=HostBatch(
            num_tokens=6,
            num_rows=3,
            num_logits=3,
            num_decodes=1,
            max_query=5,
            max_seq=70,
            query_lens=np.array([1, 5, 0]),
            seq_lens=np.array([9, 70, 1]),
        ),
        token_ids=torch.tensor([-1, 4, 5, 6, 7, 8, 0], dtype=torch.int32),
        positions=torch.tensor([[8, 65, 66, 67, 68, 69, 0]], dtype=torch.int32),
        token_rows=torch.tensor([0, 1, 1, 1, 1, 1, 2], dtype=torch.int32),
        rows=torch.tensor([3, 0, 5], dtype=torch.int32),
        query_starts=torch.tensor([0, 1, 6, 6], dtype=torch.int32),
        seq_lens=torch.tensor([9, 70, 1], dtype=torch.int32),
        num_valid=torch.tensor([6, 3, 3], dtype=torch.int32),
        logit_index=empty,
        logit_rows=empty,
        targets=empty,
        write_places=empty,
        write_blocks=empty,
    )
    ids, slots = kernel_of(native_rows.prepare_inputs(spec)).run(inputs, state)
    wanted_ids, wanted_slots = reference_prepare(spec, TABLE).run(inputs, state)
    assert torch.equal(ids, wanted_ids)
    assert all(torch.equal(mine, other) for mine, other in zip(slots, wanted_slots, strict=True))
    kernel_of(native_rows.row_writes(RowWritesSpec(num_groups=2))).run(
        state,
        torch.tensor([3, 31], dtype=torch.int32),
        torch.tensor([77, 78], dtype=torch.int32),
        torch.tensor([4], dtype=torch.int32),
        torch.full((1, NUM_ROW_COLUMNS), 5, dtype=torch.int32),
    )
    assert state.block_tables.view(-1)[[3, 31]].tolist() == [77, 78]
    assert state.params[4].tolist() == [5] * NUM_ROW_COLUMNS


# sampling


def batch_of(rows: int, vocab: int, mode: SamplingMode, generator: torch.Generator) -> SamplingBatch:
    def pick(choices: list[float]) -> list[float]:
        return [choices[int(i)] for i in torch.randint(len(choices), (rows,), generator=generator)]

    params = torch.zeros(rows, NUM_ROW_COLUMNS, dtype=torch.int32)
    columns = {
        RowColumn.TEMPERATURE: pick([0.0, 0.3, 1.0, 1.7]),
        RowColumn.TOP_P: pick([1.0, 0.9, 0.3, 0.01]),
        RowColumn.MIN_P: pick([0.0, 0.0, 0.05, 0.9]),
        RowColumn.REPETITION: pick([1.0, 1.3]),
        RowColumn.PRESENCE: pick([0.0, 0.7]),
        RowColumn.FREQUENCY: pick([0.0, 0.4]),
    }
    for column, values in columns.items():
        params[:, column] = torch.tensor(values).view(torch.int32)
    params[:, RowColumn.TOP_K] = torch.tensor(pick([0, 0, 1, 5, 40, 10**6])).int()
    for row in range(rows):
        keys = np.array(sequence_key(1234 + row, row), dtype=np.uint32).view(np.int32)
        params[row, RowColumn.NOISE_KEY0], params[row, RowColumn.NOISE_KEY1] = int(keys[0]), int(keys[1])
        params[row, RowColumn.COUNT_SLOT] = row % 3
        params[row, RowColumn.EDIT_SLOT] = row % 2
        params[row, RowColumn.EDIT_UNTIL] = 50
    counts = torch.randint(0, 2, (rows + 1, 2, vocab), generator=generator, dtype=torch.int32)
    banned = torch.rand(2, 2, vocab, generator=generator) < 0.2
    edits = torch.randn(2, 2, vocab, generator=generator).masked_fill(banned, float("-inf"))
    edits[0] = 0
    edits[:, :, 0] = 0
    counts[0] = 0
    for row in range(3, rows):  # a slot belongs to one row
        params[row, RowColumn.COUNT_SLOT] = 0
    mask = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocab // 32)), generator=generator, dtype=torch.int32)
    mask[:, 0] |= 1
    return SamplingBatch(
        mode=mode,
        positions=torch.randint(1, 100, (rows,), generator=generator, dtype=torch.int32),
        params=params,
        counts=counts,
        edits=edits,
        grammar_mask=mask if mode.grammar else None,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 7),
    vocab=st.sampled_from([1, 31, 100, 1000, 5003]),
    spread=st.sampled_from([0.0, 0.5, 3.0]),
    flags=st.tuples(*(st.booleans() for _ in range(5))),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 10**6),
)
def test_sampler_is_the_reference(
    isa: str, rows: int, vocab: int, spread: float, flags: tuple[bool, ...], dtype: torch.dtype, seed: int
) -> None:
    noise, filters, penalties, edits, grammar = flags
    mode = SamplingMode(noise=noise, filters=noise and filters, penalties=penalties, edits=edits, grammar=grammar)
    generator = torch.Generator().manual_seed(seed)
    batch, other = (batch_of(rows, vocab, mode, torch.Generator().manual_seed(seed)) for _ in range(2))
    logits = (torch.randn(rows, vocab, generator=generator) * spread).to(dtype)
    spec = SamplerSpec(vocab_size=vocab)
    found = kernel_of(native_rows.sampler(spec)).run(logits, batch)
    wanted = reference_sampler(spec, TABLE).run(logits, other)
    for row in range(rows):
        if found[row] != wanted[row]:  # only where the winner is decided by the last bits of a logarithm or a sum
            assert noise
            assert is_close_call(logits, batch, row, int(found[row]), int(wanted[row])), row
    if torch.equal(found, wanted):
        assert torch.equal(batch.counts[1:], other.counts[1:])


def is_close_call(logits: Tensor, batch: SamplingBatch, row: int, first: int, second: int) -> bool:
    """Whether two tokens' noisy scores differ by rounding, or one of them lies on a filter's edge."""
    key = tuple(int(batch.params[row, column]) & 0xFFFFFFFF for column in (RowColumn.NOISE_KEY0, RowColumn.NOISE_KEY1))
    noise = gumbel(token_bits((key[0], key[1]), int(batch.positions[row]), logits.shape[1]))
    temperature = float(batch.params[row, RowColumn.TEMPERATURE].view(torch.float32))
    score = logits[row].double() / temperature
    gap = float(score[first] + noise[first] - score[second] - noise[second])
    top_p = float(batch.params[row, RowColumn.TOP_P].view(torch.float32))
    ordered = score.sort(descending=True).values.softmax(-1).cumsum(-1)
    return abs(gap) < 1e-5 or (batch.mode.filters and float((ordered - top_p).abs().amin()) < 1e-5)


def test_noise_is_the_contracts(isa: str) -> None:
    """All logits equal: the token with the greatest noise wins, which numpy finds from the contract's bits."""
    vocab, rows = 3001, 16
    batch = batch_of(rows, vocab, SamplingMode(noise=True), torch.Generator().manual_seed(1))
    batch.params[:, RowColumn.TEMPERATURE] = torch.ones(rows).view(torch.int32)
    found = kernel_of(native_rows.sampler(SamplerSpec(vocab_size=vocab))).run(torch.zeros(rows, vocab), batch)
    for row in range(rows):
        bits = token_bits(sequence_key(1234 + row, row), int(batch.positions[row]), vocab)
        assert int(found[row]) == int(gumbel(bits).argmax())


@ANY
@given(
    rows=st.integers(0, 5),
    vocab=st.sampled_from([20, 333, 4000]),
    k=st.integers(0, 20),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_logprobs_are_the_references(isa: str, rows: int, vocab: int, k: int, dtype: torch.dtype) -> None:
    logits, tokens = torch.randn(rows, vocab).mul(4).to(dtype), torch.randint(0, vocab, (rows,), dtype=torch.int32)
    spec = TokenLogprobsSpec(vocab_size=vocab)
    found = kernel_of(native_rows.token_logprobs(spec)).run(logits, tokens, k)
    wanted = reference_logprobs(spec, TABLE).run(logits, tokens, k)
    torch.testing.assert_close(found.chosen, wanted.chosen, atol=2e-5, rtol=0)
    assert torch.equal(found.rank, wanted.rank)
    torch.testing.assert_close(found.top, wanted.top, atol=2e-5, rtol=0)
    if dtype == torch.float32:
        assert torch.equal(found.top_ids, wanted.top_ids)


def test_greedy_ties_go_to_the_lowest_id(isa: str) -> None:
    logits = torch.zeros(3, 50)
    logits[0, 7] = logits[0, 31] = 2.0
    logits[1] = float("-inf")
    logits[2, 49] = 1.0
    batch = batch_of(3, 50, SamplingMode(), torch.Generator().manual_seed(0))
    assert kernel_of(native_rows.sampler(SamplerSpec(vocab_size=50))).run(logits, batch).tolist() == [7, 0, 49]
