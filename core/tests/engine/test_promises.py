"""What the platform does not promise is refused before it goes wrong: batch invariance, indices, types."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from driver import build
from null_engine import LLAMA, MAX_LEN, LimitedPlatform

from tenon_core.config import EngineConfig
from tenon_core.engine.assembly import Assembled, ModelSource
from tenon_core.engine.promises import check_indices
from tenon_core.engine.start import effective_dtypes
from tenon_core.models.registry import family_of
from tenon_core.models.weights import DummySource
from tenon_platforms.adjustments import Ledger
from tenon_platforms.capabilities import Capabilities, Determinism
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError

pytestmark = pytest.mark.null
NO_MODEL: Any = None  # nothing is asked of it where types are named


class Promising(LimitedPlatform):
    """The null platform with other capabilities."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(is_async=False, limits={})
        self._changes = changes

    def capabilities(self, device: Device) -> Capabilities:
        return replace(super().capabilities(device), **self._changes)


def engine(platform: LimitedPlatform, **flat: Any) -> Assembled:
    family = family_of(LLAMA)
    spec = family.spec(LLAMA, MAX_LEN)
    weights = DummySource.for_model(spec, family.weights, dtype=DType.FLOAT32)
    source = ModelSource(name="null", spec=spec, names=family.weights, weights=weights, eos_token_ids=())
    return build(source, platform, max_model_len=MAX_LEN, **{"block_size": 4, "max_num_batched_tokens": 32, **flat})


@pytest.mark.parametrize("determinism", [Determinism.NONE, Determinism.RUN])
def test_batch_invariance_that_is_not_promised(determinism: Determinism) -> None:
    platform = Promising(determinism=determinism)
    with pytest.raises(
        ConfigError, match=rf"--batch-invariant: platform 'null' .* determinism is '{determinism.value}'"
    ):
        engine(platform, num_blocks=20, batch_invariant=True)
    engine(platform, num_blocks=20)


def test_no_determinism_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine(Promising(determinism=Determinism.RUN), num_blocks=20)
        assert "determinism" not in caplog.text
        engine(Promising(determinism=Determinism.NONE), num_blocks=20)
    assert "the same seed may give other tokens" in caplog.text


def test_slots_that_an_index_cannot_say_are_refused() -> None:
    platform = Promising(index_dtype=DType.UINT8)  # 64 blocks of 4 tokens: slots 0 to 255
    engine(platform, num_blocks=64)
    with pytest.raises(ConfigError, match="slots up to 259; an index here is uint8 and goes up to 255") as caught:
        engine(platform, num_blocks=65)
    assert caught.value.remedy == "pass --num-blocks 64 or less"


def test_a_planned_pool_stays_within_its_indices() -> None:
    assert engine(Promising(index_dtype=DType.UINT8)).memory.num_blocks == 64
    assert engine(Promising(index_dtype=DType.INT64)).memory.num_blocks > 64


def test_wide_indices_are_still_int32() -> None:
    platform = Promising(index_dtype=DType.INT64)  # no machine here has a pool of that size: data against data
    with pytest.raises(ConfigError, match="an index here is int32 and goes up to 2147483647"):
        check_indices(platform.capabilities(platform.device()), num_blocks=2**29 + 1, block_size=4, max_tokens=32)


def test_more_tokens_a_step_than_indices() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 300; an index here is uint8"):
        engine(Promising(index_dtype=DType.UINT8), num_blocks=64, max_num_batched_tokens=300)


def test_an_index_type_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="index type is float32"):
        engine(Promising(index_dtype=DType.FLOAT32), num_blocks=64)


@pytest.mark.parametrize("spelling", ["fp8", "fp8_e4m3", "float8_e4m3"])
def test_a_cache_of_8_bit_floats_has_three_spellings(spelling: str) -> None:
    config = EngineConfig.from_flat(dtype="float32", kv_cache_dtype=spelling)
    taken = Capabilities(kv_dtypes=(DType.FLOAT32, DType.FLOAT8_E4M3))
    assert effective_dtypes(config, taken, NO_MODEL, Ledger()) == (DType.FLOAT32, DType.FLOAT8_E4M3)
    refused = rf"--kv-cache-dtype {spelling} \(float8_e4m3\) is not available here: available are"
    with pytest.raises(ConfigError, match=refused) as caught:
        effective_dtypes(config, Capabilities(), NO_MODEL, Ledger())
    assert caught.value.remedy == "pass --kv-cache-dtype auto"


def test_an_unknown_type_of_cache_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^kv_cache_dtype is 'fp8_e5m2': expected one of auto, "):
        EngineConfig.from_flat(kv_cache_dtype="fp8_e5m2")
