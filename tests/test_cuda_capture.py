"""The CUDA platform's captured executables under a whole engine, without a GPU: recorded calls stand in for graphs.

The simulated device's attention can be captured; what is recorded is run again at a replay, with the inputs it was
recorded with and into the outputs it had then. A step that ran twice, or not at all, or on stale inputs changes tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import build, drive, model_source, prompts_of, request
from tiny_models import make_tiny

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.start import warm_up
from tenon_cuda.execution import CUDAExecution
from tenon_cuda.graphs import CaptureExecutable
from tenon_cuda.options import CUDAOptions
from tenon_platforms.batch import Logprobs, StepOutputs
from tenon_platforms.device import Device
from tenon_platforms.execution import Execution
from tenon_platforms.shapes import ShapeKey
from tenon_sim.device import SimDevice
from tenon_sim.platform import SimPlatform
from tenon_sim.trees import tensors_of

pytestmark = pytest.mark.e2e
LENGTHS = (3, 17, 40, 9, 26)


class ReplayedCall:
    """Runs what was recorded again."""

    def __init__(self, fn: Callable[[Any], Any], inputs: Any, outputs: StepOutputs) -> None:
        self._fn, self._inputs, self._outputs = fn, inputs, outputs

    def replay(self) -> None:
        found = dict(tensors_of(self._fn(self._inputs)))
        for path, target in tensors_of(self._outputs):
            target.copy_(found[path])

    def reset(self) -> None:
        """Nothing is held."""


class CallRecorder:
    """As a graph recorder, it runs nothing: outputs are buffers of the right shapes."""

    def __init__(self) -> None:
        self.num_live = 0

    def record(self, fn: Callable[[Any], Any], inputs: Any) -> tuple[ReplayedCall, Any]:
        self.num_live += 1
        key = inputs.key
        rows, best = key.logits, key.mode.num_logprobs
        logprobs = None
        if best >= 0:
            logprobs = Logprobs(
                chosen=torch.full((rows,), float("nan")),
                rank=torch.zeros(rows, dtype=torch.int32),
                top_ids=torch.zeros((rows, best), dtype=torch.int32),
                top=torch.full((rows, best), float("nan")),
            )
        outputs = StepOutputs(tokens=torch.full((rows, 1), -1, dtype=torch.int32), logprobs=logprobs)
        return ReplayedCall(fn, inputs, outputs), outputs

    def forget(self, graph: ReplayedCall) -> None:
        self.num_live -= 1


class CapturingSim(SimPlatform):
    """The simulated device with the CUDA platform's execution."""

    def __init__(self) -> None:
        super().__init__({"character": "dynamic"})
        self.recorder = CallRecorder()

    def device(self, index: int = 0) -> Device:
        return SimDevice(info=self.probe()[index], options=self.settings, is_async=False)

    def execution(self, device: Device) -> Execution:
        return CUDAExecution(device, CUDAOptions(), recorder=self.recorder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tiny("qwen2-window", tmp_path_factory.mktemp("tiny"))


def tokens_of(assembled: Assembled, **params: Any) -> list[list[int]]:
    """Of every prompt; outputs of different lengths, so that row counts fall from key to key."""
    asked = [request(i, p, max_tokens=12 + 5 * i, **params) for i, p in enumerate(prompts_of(LENGTHS))]
    outcome = drive(assembled.engine, asked)
    return [outcome.of(i) for i in range(len(asked))]


def made(tiny: Any, platform: Any, **flags: Any) -> Assembled:
    return build(model_source(Path(tiny.path), tiny.config), platform, num_blocks=200, **flags)


@pytest.mark.parametrize("prepared", [False, True], ids=["lazily", "prepared"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.9},
        {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.3, "logprobs": 2},
    ],
    ids=["greedy", "noise", "penalties"],
)
def test_captured_steps_give_the_tokens_of_eager_ones(tiny: Any, prepared: bool, params: dict[str, Any]) -> None:
    expected = tokens_of(made(tiny, CapturingSim(), enforce_eager=True), **params)
    platform = CapturingSim()
    assembled = made(tiny, platform)
    if prepared:
        warm_up(assembled, assembled.engine.device)
        assert platform.recorder.num_live == 2 * 4  # greedy and noise of 8, 4, 2 and 1 rows
    assert tokens_of(assembled, **params) == expected
    step: Any = assembled.runner.step
    assert step.num_captures >= 4
    assert tokens_of(assembled, **params) == expected  # every key by replay now
    assembled.engine.shutdown()
    assert platform.recorder.num_live == 0


def test_what_serving_will_launch_is_compiled_before_anything_is_prepared(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = CapturingSim()
    assembled = made(tiny, platform)
    ahead: list[tuple[ShapeKey, int]] = []

    def compile_ahead(self: CaptureExecutable, steps: Iterable[tuple[ShapeKey, Any]]) -> None:
        assert platform.recorder.num_live == 0
        ahead.extend((key, inputs.inputs.token_ids.shape[0]) for key, inputs in steps)

    monkeypatch.setattr(CaptureExecutable, "compile_ahead", compile_ahead)
    warm_up(assembled, assembled.engine.device)
    eager = list(assembled.policy.eager_keys())
    assert [key for key, _ in ahead[: len(eager)]] == eager
    typical = ahead[len(eager) :]
    assert typical[-1][0].mode.filters
    prompts = typical[:-1]
    assert [tokens for _, tokens in prompts] == [key.tokens for key, _ in prompts]
    assert [key.tokens for key, _ in prompts][-2:] == [64, 32]
    assert not any(key.static or key.is_decode for key, _ in prompts)
    assembled.engine.shutdown()
