"""`EngineConfig`: values of a wrong type or size are refused by name before anything starts."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tenon_core.config import EngineConfig
from tenon_core.execution.memory import plan_memory
from tenon_platforms.device import Device, Fault, MemoryInfo
from tenon_platforms.errors import CapacityError, ConfigError

pytestmark = pytest.mark.null


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", "8"),
        ("max_num_seqs", None),
        ("max_num_seqs", 1.5),
        ("max_num_seqs", True),
        ("max_num_seqs", 2**31),
        ("max_model_len", "512"),
        ("max_model_len", 2**31),
        ("num_blocks", 2**31),
        ("block_size", 10**10),
        ("kv_cache_memory", 2**63),
        ("seed", None),
        ("seed", "1"),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("platform", 5),
        ("platform_opt", "cpu.threads=1"),
        ("platform_opt", (5,)),
        ("enable_prefix_caching", "no"),
        ("strict", 1),
        ("memory_utilization", "x"),
        ("memory_utilization", True),
        ("tokenizer", 5),
        ("model", None),
    ],
    ids=str,
)
def test_a_value_of_a_wrong_kind_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is "):
        EngineConfig.from_flat(**{name: value})


def test_what_python_callers_have_at_hand_is_taken() -> None:
    config = EngineConfig.from_flat(
        model=Path("a"), platform_opt=["a.b=1"], memory_utilization=1, seed=-1, max_model_len=None
    )
    assert config.model.model == "a" and config.platform.platform_opt == ("a.b=1",)
    assert EngineConfig.from_flat(**config.flat()) == config


@pytest.mark.parametrize("wish", [{"num_blocks": 1001, "kv_bytes": None}, {"num_blocks": None, "kv_bytes": 10**9}])
def test_a_pool_larger_than_the_device_is_refused_with_the_figures(wish: dict[str, Any]) -> None:
    memory = MemoryInfo(free=50_000, total=100_000, peak=0)
    common: dict[str, Any] = {"share": 0.5, "weights": 0, "activations": 0, "block": 100}
    with pytest.raises(CapacityError, match="the device has 100000"):
        plan_memory(memory=memory, wanted_blocks=2000, **common, **wish)
    plan = plan_memory(memory=memory, wanted_blocks=2000, num_blocks=1000, kv_bytes=None, **common)
    assert plan.kv == 100_000


def test_no_memory_by_errno_is_out_of_memory() -> None:
    assert Device().classify_fault(OSError(errno.ENOMEM, "no")) is Fault.OUT_OF_MEMORY
    assert Device().classify_fault(OSError(errno.ENOENT, "no")) is Fault.REQUEST
