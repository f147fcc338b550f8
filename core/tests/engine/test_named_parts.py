"""A scheduler or allocator that nobody registered is told before anything is downloaded and any weight is read."""

from __future__ import annotations

import pytest
from driver import StateDict, build
from null_engine import LLAMA, MAX_LEN, LimitedPlatform

from tenon_core.config import EngineConfig
from tenon_core.engine import start
from tenon_core.engine.assembly import ModelSource
from tenon_core.models.registry import family_of
from tenon_core.models.weights import DummySource
from tenon_platforms.dtypes import DType
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.weights import PartTensors

pytestmark = pytest.mark.null
WRONG = [("scheduler", "tenon.schedulers"), ("block_allocator", "tenon.block_allocators")]


class Counting(StateDict):
    """Counts what is read of it."""

    num_reads = 0

    def tensors(self, name: str) -> PartTensors:
        self.num_reads += 1
        return super().tensors(name)


def counting_source() -> tuple[ModelSource, Counting]:
    family = family_of(LLAMA)
    spec = family.spec(LLAMA, MAX_LEN)
    dummy = DummySource.for_model(spec, family.weights, dtype=DType.FLOAT32)
    weights = Counting({name: dummy.tensors(name)["weight"] for name in dummy.names()})
    return ModelSource(name="null", spec=spec, names=family.weights, weights=weights, eos_token_ids=()), weights


@pytest.mark.parametrize(("option", "group"), WRONG)
def test_no_weight_is_read(option: str, group: str) -> None:
    source, weights = counting_source()
    platform = LimitedPlatform(is_async=False, limits={})
    flat = {"num_blocks": 20, "block_size": 4, "max_model_len": MAX_LEN}
    with pytest.raises(ConfigError, match=rf"'nobody' is not registered in {group}: registered are .*default"):
        build(source, platform, **flat, **{option: "nobody"})
    assert weights.num_reads == 0
    build(source, platform, **flat)
    assert weights.num_reads == len(list(weights.names())), "the count shows nothing"


@pytest.mark.parametrize(("option", "group"), WRONG)
def test_no_model_is_looked_for(option: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "resolve_model", lambda *_, **__: pytest.fail("the model was looked for"))
    config = EngineConfig.from_flat(model="org/name", platform="reference", **{option: "nobody"})
    with pytest.raises(ConfigError, match=group):
        start.start_engine(config)
