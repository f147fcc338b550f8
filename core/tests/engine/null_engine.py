"""Engines without arithmetic for tests of engine logic: the null platform, with the schedule limits a test asks for.

Every token comes out as 0. `is_async` makes the engine keep a step in flight, as on a device that queues work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from driver import build

from tenon_core.engine.assembly import Assembled, ModelSource
from tenon_core.models.registry import family_of
from tenon_core.models.weights import DummySource
from tenon_platforms.builtin.null.platform import NullExecution, NullPlatform
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.device import Device
from tenon_platforms.dtypes import DType
from tenon_platforms.execution import EngineLimits, Execution
from tenon_platforms.model import ModelSpec
from tenon_platforms.shapes import DynamicShapes, ScheduleLimits, ShapePolicy

MAX_LEN = 128
SIZES = {
    "vocab_size": 50,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": MAX_LEN,
}
LLAMA = {**SIZES, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
WINDOWED = {
    **SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 3,
    "sliding_window": 10,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


class LimitedPlatform(NullPlatform):
    """The null platform with other schedule limits."""

    name: ClassVar[str] = "null"

    def __init__(self, *, is_async: bool, limits: Mapping[str, Any], shares_host_memory: bool = False) -> None:
        super().__init__()
        self._is_async, self._limits = is_async, limits
        self._shares_host_memory = shares_host_memory

    def device(self, index: int = 0) -> Device:
        device = super().device(index)
        device.is_async = self._is_async
        device.shares_host_memory = self._shares_host_memory
        return device

    def execution(self, device: Device) -> Execution:
        return _Limited(device, self._limits)


class _Limited(NullExecution):
    def __init__(self, device: Device, limits: Mapping[str, Any]) -> None:
        super().__init__(device)
        self._limits = limits

    def shape_policy(self, model: ModelSpec, limits: EngineLimits, capabilities: Capabilities) -> ShapePolicy:
        known = {"max_tokens": limits.max_tokens or 64, "max_rows": limits.max_rows, "chunking": limits.chunking}
        return DynamicShapes(limits=ScheduleLimits(**{**known, **self._limits}))


def null_engine(
    config: Mapping[str, Any] = LLAMA,
    *,
    is_async: bool = True,
    limits: Mapping[str, Any] | None = None,
    eos_token_ids: tuple[int, ...] = (),
    shares_host_memory: bool = False,
    **flat: Any,
) -> Assembled:
    """An assembled engine; blocks of 4 tokens and 4 rows unless said otherwise."""
    family = family_of(config)
    spec = family.spec(config, MAX_LEN)
    source = ModelSource(
        name="null",
        spec=spec,
        names=family.weights,
        weights=DummySource.for_model(spec, family.weights, dtype=DType.FLOAT32),
        eos_token_ids=eos_token_ids,
    )
    platform = LimitedPlatform(is_async=is_async, limits=limits or {}, shares_host_memory=shares_host_memory)
    settings: dict[str, Any] = {
        "max_num_seqs": 4, "block_size": 4, "max_num_batched_tokens": 32, "enable_sleep_mode": True, **flat,
    }  # fmt: skip
    return build(source, platform, max_model_len=MAX_LEN, **settings)


Make = Callable[[], Assembled]
VARIANTS: dict[str, Make] = {
    "roomy": lambda: null_engine(num_blocks=200),
    "synchronous": lambda: null_engine(num_blocks=40, is_async=False),
    "in the host's memory": lambda: null_engine(num_blocks=40, is_async=False, shares_host_memory=True),
    "tiny pool": lambda: null_engine(num_blocks=20),
    "tiny pool, no prefix cache": lambda: null_engine(num_blocks=20, enable_prefix_caching=False),
    "windows": lambda: null_engine(WINDOWED, num_blocks=60),
    "windows, roomy": lambda: null_engine(WINDOWED, num_blocks=400),
    "apart, fixed chunks": lambda: null_engine(
        num_blocks=30, limits={"mix": False, "max_prefills": 2, "fixed_chunk": 6}
    ),
    "apart, no chunking": lambda: null_engine(
        num_blocks=40,
        limits={"mix": False, "max_prefills": 1},
        enable_chunked_prefill=False,
        max_num_batched_tokens=MAX_LEN,
    ),
    "small chunks": lambda: null_engine(num_blocks=30, max_num_batched_tokens=4),
    "one row": lambda: null_engine(num_blocks=30, max_num_seqs=1),
}
