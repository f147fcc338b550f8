"""Native linears on every instruction set of this machine, against float64 of the same quantized inputs."""

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
from tenon_cpu.native_linear import NativeLinear, PackedWeight, look_up, pack_blocks, pack_dense
from tenon_cpu.ops.native_weights import Packer, gated_mlp, merged_linear
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import DeviceError
from tenon_platforms.formats.gguf_reference import dequantize
from tenon_platforms.formats.gguf_types import BY_NAME
from tenon_platforms.kernel import Kernel
from tenon_platforms.ops.linear import GGUFBlocks, LinearPart, MergedLinearSpec
from tenon_platforms.ops.mlp import GatedMLPSpec
from tenon_platforms.ops.quantized import Int8Channel

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(native.library() is None, reason="built without the native library"),
]
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
DENSE = (torch.float32, torch.bfloat16, torch.float16)
HALVES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1, "Q4_K": 2, "Q5_K": 2}  # leading float16 of a block
EPS = 2.0**-24
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=native.ISAS)
def isa(request: Any) -> Iterator[str]:
    """Each instruction set; skipped where this machine cannot run it."""
    if native.ISAS.index(request.param) > native.ISAS.index(native.best_isa()):
        pytest.skip(f"this machine runs {native.best_isa()} at most")
    native.set_isa(request.param)
    native.set_threads(2)
    yield request.param
    native.set_isa("auto")
    native.set_threads(1)


def random_blocks(rng: np.random.Generator, type_name: str, rows: int, columns: int) -> Tensor:
    """Blocks with every code equally likely and scales as models have them, uint8 [rows, bytes]."""
    kind = BY_NAME[type_name]
    blocks = rng.integers(0, 256, (rows, columns // kind.elements, kind.bytes), dtype=np.uint8)
    count = HALVES.get(type_name)
    usual = 0.01 / 32 if type_name.endswith("_K") else 0.01  # those have 6-bit or 8-bit scales of their own beside
    scales = rng.normal(0, usual, (*blocks.shape[:2], count or 1)).astype(np.float16).view(np.uint8)
    if count:
        blocks[..., : 2 * count] = scales
    else:
        blocks[..., -2:] = scales  # Q6_K
    return torch.from_numpy(blocks.reshape(rows, -1))


def rounded(x: Tensor) -> Tensor:
    """float64 of activations as kernels take them: int8 codes in blocks of 32, d = max / 127 in float32."""
    blocks = x.float().reshape(len(x), x.shape[-1] // 32, 32)
    top = blocks.abs().amax(-1, keepdim=True)
    codes = (blocks * torch.where(top > 1e-30, torch.full_like(top, 127.0) / top, 0.0)).round()
    return (codes.double() * (top / 127.0).double()).reshape(x.shape)


def bound(x: Tensor, weight: Tensor, magnitude: Tensor, blocks: int) -> Tensor:
    """Of a float32 sum of `blocks` terms, each of a few roundings: (blocks + 8) eps times the sum of magnitudes."""
    return (2 * blocks + 8) * EPS * (x.abs() @ magnitude.T) + 1e-30


def magnitude_of(type_name: str, blocks: Tensor) -> Tensor:
    """What a weight's terms sum to without cancelling: |scale| * code + |minimum|, at most; float64 [rows, columns]."""
    weight = dequantize(blocks, type_name, torch.float64).reshape(len(blocks), -1, 32)
    return (2 * weight.abs().amax(-1, keepdim=True)).expand_as(weight).reshape(len(blocks), -1) * 2


@pytest.mark.parametrize("type_name", QUANTIZED)
@quick
@given(tokens=st.integers(0, 70), rows=st.integers(1, 70), units=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_blocks(isa: str, type_name: str, tokens: int, rows: int, units: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = units * BY_NAME[type_name].elements
    blocks = random_blocks(rng, type_name, rows, columns)
    x = torch.from_numpy(rng.normal(0, 1, (tokens, columns)).astype(np.float32))
    found = NativeLinear([pack_blocks(blocks, type_name, columns)])(x)
    weight, exact = dequantize(blocks, type_name, torch.float64), rounded(x)
    assert found.shape == (tokens, rows)
    error = (found.double() - exact @ weight.T).abs()
    assert bool((error <= bound(exact, weight, magnitude_of(type_name, blocks), columns // 16)).all())


@pytest.mark.parametrize("dtype", DENSE)
@quick
@given(tokens=st.integers(0, 70), rows=st.integers(1, 70), columns=st.integers(1, 130), seed=st.integers(0, 2**31))
def test_dense(isa: str, dtype: torch.dtype, tokens: int, rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = torch.from_numpy(rng.normal(0, 1, (rows, columns)).astype(np.float32)).to(dtype)
    x = torch.from_numpy(rng.normal(0, 1, (tokens, columns)).astype(np.float32))
    found = NativeLinear([pack_dense(weight)])(x)
    error = (found.double() - x.double() @ weight.double().T).abs()
    assert bool((error <= bound(x.double(), weight.double(), weight.double().abs(), columns)).all())


@pytest.mark.parametrize("type_name", (*QUANTIZED, "F32", "F16", "BF16"))
@quick
@given(rows=st.integers(1, 40), units=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_packing_keeps_every_bit_and_rows_are_found(isa: str, type_name: str, rows: int, units: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = BY_NAME[type_name]
    columns = units * kind.elements
    blocks = torch.from_numpy(rng.integers(0, 256, (rows, units * kind.bytes), dtype=np.uint8))
    packed = pack_blocks(blocks, type_name, columns)
    assert torch.equal(packed.stored(), blocks)
    if type_name in QUANTIZED:
        blocks = random_blocks(rng, type_name, rows, columns)
        packed = pack_blocks(blocks, type_name, columns)
        ids = torch.from_numpy(rng.integers(0, rows, 9))
        found = look_up(packed, ids, 1.0, torch.float32)
        assert torch.equal(found, dequantize(blocks, type_name, torch.float32)[ids])


@quick
@given(data=st.data(), tokens=st.sampled_from([1, 2, 5, 33, 300]), kind=st.sampled_from(DENSE), silu=st.booleans())
def test_parts_of_different_types_bias_and_silu(isa: str, data: Any, tokens: int, kind: Any, silu: bool) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    types = data.draw(st.lists(st.sampled_from([*QUANTIZED, "BF16"]), min_size=2, max_size=2 if silu else 4))
    rows = [data.draw(st.integers(1, 40))] * 2 if silu else [data.draw(st.integers(1, 40)) for _ in types]
    parts, weights = [], []
    for name, count in zip(types, rows, strict=True):
        if name == "BF16":
            dense = torch.from_numpy(rng.normal(0, 0.1, (count, 256))).bfloat16()
            parts.append(pack_dense(dense))
            weights.append(dense.double())
        else:
            blocks = random_blocks(rng, name, count, 256)
            parts.append(pack_blocks(blocks, name, 256))
            weights.append(dequantize(blocks, name, torch.float64))
    bias = torch.from_numpy(rng.normal(0, 1, sum(rows)).astype(np.float32))
    x = torch.from_numpy(rng.normal(0, 1, (tokens, 300)).astype(np.float32)).to(kind)[:, :256]  # a stride of its own
    found = NativeLinear(parts, bias, silu_mul=silu, alike=True)(x)
    taken = [x.double() if name == "BF16" else rounded(x) for name in types]
    each = [t @ w.T for t, w in zip(taken, weights, strict=True)]
    wanted = torch.cat(each, -1) + bias.double()
    size = float(wanted.abs().max())
    if silu:
        gate, up = wanted.chunk(2, -1)
        wanted = torch.nn.functional.silu(gate) * up
        size = float((gate.abs() * up.abs()).max())  # the sigmoid's own error is relative to this
    unit = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[kind]
    assert found.dtype == kind
    known = wanted.abs() < 0.99 * torch.finfo(kind).max  # near the largest, rounding decides
    wanted, found = wanted[known], found[known]
    torch.testing.assert_close(found.double(), wanted, rtol=4 * unit, atol=unit * size)


def test_silu_of_a_gate_far_below_zero_is_zero_and_of_no_number_none(isa: str) -> None:
    gates = torch.tensor([-3e38, -1e30, -1e9, -1e4, -100.0, -20.0, 3.0, float("nan")])
    weights = torch.zeros(2, 32)
    weights[0, 0] = weights[1, 1] = 1.0
    x = torch.zeros(len(gates), 32)
    x[:, 0], x[:, 1] = gates, 9.0
    found = NativeLinear([pack_dense(row[None]) for row in weights], None, silu_mul=True)(x)[:, 0]
    assert bool((found[:5].abs() < 1e-30).all()), found
    wanted = torch.nn.functional.silu(gates[5:7].double()) * 9.0
    torch.testing.assert_close(found[5:7].double(), wanted, rtol=1e-5, atol=0.0)
    assert bool(found[7].isnan())


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("type_name", QUANTIZED)
def test_a_token_has_the_same_bits_in_any_batch(isa: str, type_name: str, fine: bool) -> None:
    rng = np.random.default_rng(7)
    packed = pack_blocks(random_blocks(rng, type_name, 50, 512), type_name, 512)
    linear = NativeLinear([packed], fine=fine, alike=True)
    x = torch.from_numpy(rng.normal(0, 1, (130, 512)).astype(np.float32))
    alone = torch.cat([linear(row) for row in x.split(1)])
    for count in (2, 3, 7, 8, 17, 70, 130):
        assert torch.equal(linear(x[:count]), alone[:count])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("type_name", QUANTIZED)
def test_many_tokens_are_no_coarser_than_few(isa: str, type_name: str, dtype: torch.dtype) -> None:
    """With AMX they are rounded to bfloat16, not to int8 codes. An odd number of groups, and rows with a stride."""
    rng = np.random.default_rng(7)
    blocks = random_blocks(rng, type_name, 39, 512)
    linear = NativeLinear([pack_blocks(blocks, type_name, 512)])
    x = torch.from_numpy(rng.normal(0, 1, (150, 600)).astype(np.float32)).to(dtype)[:, :512]
    exact = x.double() @ dequantize(blocks, type_name, torch.float64).T

    def error(found: Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm())

    few = error(torch.cat([linear(rows) for rows in x.split(16)]))
    assert error(linear(x)) <= 1.01 * few < 0.02


@pytest.mark.parametrize("gguf", ["auto", "inplace"])
@pytest.mark.parametrize(("isa_is", "alike"), [("avx512_vnni", False), ("amx", False), ("amx", True)])
def test_a_kernel_says_whether_sums_depend_on_the_batch(
    monkeypatch: pytest.MonkeyPatch, gguf: str, isa_is: str, alike: bool
) -> None:
    monkeypatch.setattr(native, "current_isa", lambda: isa_is)
    part = LinearPart(name="q", out_features=64, scheme=GGUFBlocks(type="Q4_1"))
    spec = MergedLinearSpec(in_features=64, parts=(part,), dtype=DType.FLOAT32)
    kernel = merged_linear(spec, Packer(gguf=gguf, alike=alike))
    assert isinstance(kernel, Kernel)
    assert kernel.flags.batch_invariant is not (isa_is == "amx" and gguf == "inplace" and not alike)


def test_a_kernel_of_blocks_and_floats_of_one_scheme_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "current_isa", lambda: "amx")

    def linear(columns: int, *rows: int) -> MergedLinearSpec:
        parts = tuple(LinearPart(name=str(i), out_features=count, scheme=Int8Channel()) for i, count in enumerate(rows))
        return MergedLinearSpec(in_features=columns, parts=parts, dtype=DType.FLOAT32)

    for inner in (64, 72):  # blocks do not divide 72: that part is floats, gate and up are blocks
        spec = GatedMLPSpec(gate_up=linear(64, inner, inner), down=linear(inner, 64), activation="silu")
        kernel = gated_mlp(spec, Packer(gguf="inplace"))
        assert isinstance(kernel, Kernel)
        assert not kernel.flags.batch_invariant


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("tokens", [3, 20])
def test_values_that_are_not_finite_stay_visible(isa: str, fine: bool, tokens: int) -> None:
    rng = np.random.default_rng(7)
    for type_name in ("Q4_1", "Q8_0"):
        linear = NativeLinear([pack_blocks(random_blocks(rng, type_name, 20, 64), type_name, 64)], fine=fine)
        x = torch.zeros(tokens, 64)
        x[0, 5], x[2, 40] = float("inf"), float("nan")
        found = linear(x)
        assert bool(found[0].isnan().all()) and bool(found[2].isnan().all()) and bool((found[1] == 0).all())


@pytest.mark.parametrize("type_name", ["Q4_1", "Q6_K", "BF16"])
@pytest.mark.parametrize("fine", [False, True])
def test_the_result_does_not_depend_on_how_work_is_split(isa: str, type_name: str, fine: bool) -> None:
    rng = np.random.default_rng(7)
    if type_name == "BF16":
        packed = pack_dense(torch.from_numpy(rng.normal(0, 1, (333, 512)).astype(np.float32)).bfloat16())
    else:
        packed = pack_blocks(random_blocks(rng, type_name, 333, 512), type_name, 512)
    linear = NativeLinear([packed], fine=fine)
    for tokens in (1, 9, 300):
        x = torch.from_numpy(rng.normal(0, 1, (tokens, 512)).astype(np.float32))
        found = []
        for threads in (1, 2, 3, 7):
            native.set_threads(threads)
            found += [linear(x) for _ in range(3)]
        assert all(torch.equal(one, found[0]) for one in found)


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_a_short_buffer_is_refused(type_name: str) -> None:
    blocks = random_blocks(np.random.default_rng(1), type_name, 3, 512)
    with pytest.raises(DeviceError, match="shorter"):
        pack_blocks(blocks[:, :-1], type_name, 512)
    with pytest.raises(DeviceError):
        pack_blocks(blocks, type_name, 500)
    packed = pack_blocks(blocks, type_name, 512)
    with pytest.raises(DeviceError, match="shorter"):
        NativeLinear([PackedWeight(type_name, 17, 512, packed.packed)])
    with pytest.raises(DeviceError, match="null pointer"):
        NativeLinear([PackedWeight(type_name, 3, 512, packed.packed[1:])])


def test_an_id_out_of_range_is_not_read() -> None:
    packed = pack_blocks(random_blocks(np.random.default_rng(1), "Q8_0", 5, 64), "Q8_0", 64)
    found = look_up(packed, torch.tensor([-1, 0, 5, 2**40]), 1.0, torch.float32)
    assert found.isnan().all(-1).tolist() == [True, False, True, True]


@pytest.mark.parametrize("type_name", QUANTIZED)
@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_int16_codes_are_close_to_exact_activations(isa: str, type_name: str, tokens: int) -> None:
    """An int8 code leaves about one part in a hundred; an int16 one 1 / 255 of that."""
    rng = np.random.default_rng(tokens)
    blocks = random_blocks(rng, type_name, 37, 512)
    weight = dequantize(blocks, type_name, torch.float64)
    x = torch.from_numpy(rng.normal(size=(tokens, 512)).astype(np.float32))
    x[:, ::7] *= 20
    packed = pack_blocks(blocks, type_name, 512)
    exact = x.double() @ weight.t()
    # each activation is off by half a step of its block's code at most: d / 2, d = max / 32639
    step = x.reshape(tokens, -1, 32).abs().amax(-1) / 32639 / 2
    bound = step.repeat_interleave(32, dim=1).double() @ weight.abs().t() + 1e-5 * (x.abs().double() @ weight.abs().t())
    fine = NativeLinear((packed,), fine=True)(x).double()
    assert ((fine - exact).abs() <= 1.01 * bound).all()
    coarse = NativeLinear((packed,))(x).double()
    assert (fine - exact).norm() < (coarse - exact).norm() / 20
