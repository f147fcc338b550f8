"""What is offered, what is refused and why, and that the table of configurations fits the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attention_cases import FACTS, spec_of

from tenon_platforms.attention import AttentionKernel, GraphSupport
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.kernel import No
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.table import OpTable
from tenon_triton.attention import FEATURES, paged_attention
from tenon_triton.attention.configs import DecodeConfig, attention_configs, max_parts, next_power
from tenon_triton.facts import DeviceFacts

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_the_table_chooses_it_with_every_feature(batch_invariant: bool) -> None:
    table = OpTable(platform="test", batch_invariant=batch_invariant)
    table.offer(
        AttentionSpec,
        "paged",
        lambda spec: paged_attention(spec, Device(), FACTS, batch_invariant=batch_invariant),
        features=FEATURES,
    )
    kernel = table.choose(spec_of(sliding_window=5, soft_cap=1.0, sinks=True), Device())
    assert isinstance(kernel, AttentionKernel)
    assert kernel.name == "triton.paged"
    assert kernel.backend.graph_support is GraphSupport.ALWAYS
    assert kernel.flags.batch_invariant is batch_invariant
    assert kernel.flags.workspace_bytes > 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tree_mask": True}, "tree mask"),
        ({"dtype": DType.FLOAT64}, "not in float64"),
        ({"kv_dtype": DType.BFLOAT16, "dtype": DType.FLOAT16}, "no KV cache in bfloat16"),
        ({"kv_dtype": DType.FLOAT8_E5M2}, "no KV cache in float8_e5m2"),
        ({"dim": 12}, "not of 12"),
        ({"dim": 320}, "not of 320"),
        ({"heads": 5}, "5 query heads on 2"),
        ({"scale": -1.0}, "positive scale"),
    ],
)
def test_refusals_say_why(fields: dict[str, Any], reason: str) -> None:
    found = paged_attention(spec_of(**fields), Device(), FACTS)
    assert isinstance(found, No)
    assert reason in str(found)


def test_what_the_device_lacks_is_refused() -> None:
    facts = DeviceFacts(compute_units=4, shared_bytes=100_000, fp8=False)
    found = paged_attention(spec_of(kv_dtype=DType.FLOAT8_E4M3), Device(), facts)
    assert isinstance(found, No)
    assert "float8_e4m3" in str(found)
    found = paged_attention(spec_of(), Device(), FACTS, kernel_block=24)
    assert isinstance(found, No)
    assert "not of 24" in str(found)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("shared", [64 * 1024, 99 * 1024, 227 * 1024])
@pytest.mark.parametrize("size", [2, 4])
def test_configurations_fit(dim: int, shared: int, size: int) -> None:
    facts = DeviceFacts(compute_units=100, shared_bytes=shared)
    for group in (1, 2, 5, 8, 64):
        found = attention_configs(dim, group, size, size, facts)
        for config in (found.short, found.long, *found.decodes):
            held = config.stages * config.tile * next_power(dim) * 2 * size
            assert held <= shared or config.stages == 1
            assert config.tile >= 16
        assert found.long.block_rows >= group
        assert found.short.block_rows >= group


def test_parts_follow_the_number_of_programs() -> None:
    config, facts = DecodeConfig(tile=64, warps=4, stages=3, programs_per_unit=8), FACTS
    wanted = 8 * facts.compute_units
    assert max_parts(1, 2, config, facts) == wanted // 2
    assert max_parts(1000, 8, config, facts) == 1
    assert all(rows * 2 * max_parts(rows, 2, config, facts) <= max(wanted, rows * 2) for rows in range(1, 50))


def test_few_rows_are_decoded_in_shorter_parts() -> None:
    facts = DeviceFacts(compute_units=132, shared_bytes=227 * 1024)
    found = attention_configs(128, 4, 2, 2, facts)
    few, whole, many = (found.decode_for(rows, 8, facts) for rows in (8, 16, 17))
    assert few is found.few
    assert whole is found.whole
    assert many is found.decode
    assert few.min_tokens < many.min_tokens
    assert few.fetches
    assert max_parts(9, 8, whole, facts) == 1
    assert replace(found, whole=None).decode_for(16, 8, facts) is found.few
    assert replace(found, few=None).decode_for(1, 8, facts) is found.decode


def test_a_whole_row_wants_room_for_what_is_on_its_way() -> None:
    assert attention_configs(128, 4, 2, 2, DeviceFacts(compute_units=100, shared_bytes=99 * 1024)).whole is None
