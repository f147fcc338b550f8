"""The reference dequantizer against the gguf package's own, bit for bit, and against the definition in float64."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import quants

from tenon_platforms.dtypes import DType
from tenon_platforms.formats.gguf_reference import dequantize, quantize_q4_0, quantize_q4_1, quantize_q8_0
from tenon_platforms.formats.gguf_types import BY_ID, BY_NAME, KNOWN_NAMES, SUPPORTED

pytestmark = pytest.mark.unit
QUANTIZED = [name for name in SUPPORTED if BY_NAME[name].dtype is None]
QUANTIZE = {"Q8_0": quantize_q8_0, "Q4_0": quantize_q4_0, "Q4_1": quantize_q4_1}
HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2)} | {
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(name: str, rows: int, blocks: int, *, seed: int = 0) -> np.ndarray:
    """Random bytes with finite float16 fields: every bit of every quantized value is exercised."""
    kind = BY_NAME[name]
    generator = np.random.default_rng(seed)
    table = generator.integers(0, 256, (rows * blocks, kind.bytes), dtype=np.uint8)
    for at in HALVES[name]:
        values = (generator.standard_normal(len(table)) * 2.0 ** generator.integers(-14, 6, len(table))).astype("<f2")
        table[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    return table.reshape(rows, blocks * kind.bytes)


@pytest.mark.parametrize("name", QUANTIZED)
def test_float32_has_the_bits_of_the_gguf_package(name: str) -> None:
    blocks = random_blocks(name, rows=7, blocks=9)
    expected = quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    found = dequantize(torch.from_numpy(blocks), name, torch.float32)
    assert found.shape == expected.shape
    assert torch.equal(found.view(torch.int32), torch.from_numpy(expected).view(torch.int32))


@pytest.mark.parametrize("name", QUANTIZED)
def test_float64_is_within_float32_rounding_and_not_a_widened_float32(name: str) -> None:
    blocks = torch.from_numpy(random_blocks(name, rows=5, blocks=8, seed=1))
    narrow, wide = dequantize(blocks, name, torch.float32), dequantize(blocks, name, torch.float64)
    assert wide.dtype == torch.float64
    # one rounding of each product and of their sum, relative to the greatest term of a row
    torch.testing.assert_close(narrow.double(), wide, rtol=4e-7, atol=float(wide.abs().max()) * 2e-7)
    if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):  # those whose sums do not fit float32
        assert (narrow.double() != wide).any()


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_are_float32_rounded_once(name: str, dtype: torch.dtype) -> None:
    blocks = torch.from_numpy(random_blocks(name, rows=3, blocks=4, seed=2))
    assert torch.equal(dequantize(blocks, name, dtype), dequantize(blocks, name, torch.float32).to(dtype))


@pytest.mark.parametrize(("name", "dtype"), [("F32", "<f4"), ("F16", "<f2")])
def test_plain_types(name: str, dtype: str) -> None:
    values = np.random.default_rng(3).standard_normal((4, 6)).astype(dtype)
    found = dequantize(torch.from_numpy(values.view(np.uint8)), name, torch.float64)
    assert np.array_equal(found.numpy(), values.astype(np.float64))


def test_bfloat16_round_trip() -> None:
    values = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(dequantize(values.view(torch.uint8), "BF16", torch.float32), values.float())


@pytest.mark.parametrize("name", sorted(QUANTIZE))
def test_quantizing_writes_the_bytes_of_the_gguf_package(name: str) -> None:
    values = np.random.default_rng(4).standard_normal((64, 256)).astype(np.float32)
    values[0, :32] = 0  # a block without a scale
    values[1, :32] = np.where(np.arange(32) % 2, 2.0, -2.0)  # two extremes of one size
    values[2, :32] = np.arange(32) * 0.5  # halves between two steps
    expected = quants.quantize(values, gguf.GGMLQuantizationType[name])
    assert np.array_equal(QUANTIZE[name](torch.from_numpy(values)).numpy(), expected)


@pytest.mark.parametrize("name", sorted(QUANTIZE))
def test_quantizing_loses_no_more_than_half_a_step(name: str) -> None:
    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    found = dequantize(QUANTIZE[name](values), name, torch.float32)
    per_block = values.view(-1, 32)
    span = per_block.abs().amax(1) if name in ("Q8_0", "Q4_0") else per_block.amax(1) - per_block.amin(1)
    steps = {"Q8_0": 127, "Q4_0": 8, "Q4_1": 15}[name]
    worst = (found - values).view(-1, 32).abs().amax(1)
    # the value opposite to a symmetric type's peak is clipped by one whole step; the scale itself is rounded to float16
    assert (worst <= span / steps * ((1.02 if name == "Q4_0" else 0.52) + steps / 2048)).all()


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_experts_and_odd_strides(name: str) -> None:
    blocks = torch.from_numpy(random_blocks(name, rows=6, blocks=4, seed=5)).view(2, 3, -1)
    found = dequantize(blocks, name, torch.float32)
    assert found.shape == (2, 3, 4 * BY_NAME[name].elements)
    assert torch.equal(dequantize(blocks[:, ::2], name, torch.float32), found[:, ::2])


def test_what_is_not_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="19 bytes holds no whole number of Q4_0 blocks"):
        dequantize(torch.zeros(2, 19, dtype=torch.uint8), "Q4_0", torch.float32)
    with pytest.raises(ValueError, match="'IQ2_XS' is not supported: supported are F32"):
        dequantize(torch.zeros(2, 74, dtype=torch.uint8), "IQ2_XS", torch.float32)


def test_the_table_agrees_with_the_gguf_package() -> None:
    for name, kind in BY_NAME.items():
        known = gguf.GGMLQuantizationType[name]
        assert kind.id == known.value and BY_ID[kind.id] is kind
        assert (kind.elements, kind.bytes) == gguf.GGML_QUANT_SIZES[known]
    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert all(names.get(number, name) == name for number, name in KNOWN_NAMES.items())
    assert not KNOWN_NAMES.keys() & BY_ID.keys()


def test_supported_types_are_those_of_the_contract() -> None:
    expected = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"}
    assert set(SUPPORTED) == expected
    assert {BY_NAME[name].dtype for name in ("F32", "F16", "BF16")} == {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16}
