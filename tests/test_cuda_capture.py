"""The CUDA platform's captured executables under a whole engine, without a GPU: recorded calls stand in for graphs.

The simulated device's attention can be captured; what is recorded is run again at a replay, with the inputs it was
recorded with and into the outputs it had then. A step that ran twice, or not at all, or on stale inputs changes tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from byte_vocabulary import END, tokenizer_json
from driver import MAX_LEN, build, drive, model_source, prompts_of, request
from replayed_calls import CallRecorder
from tiny_models import make_tiny

from tenon_core.engine.assembly import Assembled
from tenon_core.engine.start import warm_up
from tenon_core.sampling.structured import StructuredOutputs
from tenon_cuda.execution import CUDAExecution
from tenon_cuda.graphs import CaptureExecutable
from tenon_cuda.options import CUDAOptions
from tenon_platforms.device import Device
from tenon_platforms.execution import Execution
from tenon_platforms.shapes import ShapeKey
from tenon_sim.device import SimDevice
from tenon_sim.platform import SimPlatform

pytestmark = pytest.mark.e2e
LENGTHS = (3, 17, 40, 9, 26)


class CapturingSim(SimPlatform):
    """The simulated device with the CUDA platform's execution."""

    def __init__(self, **options: Any) -> None:
        super().__init__({"character": "dynamic"})
        self.recorder = CallRecorder()
        self.cuda = CUDAOptions(**options)

    def device(self, index: int = 0) -> Device:
        return SimDevice(info=self.probe()[index], options=self.settings, is_async=False)

    def execution(self, device: Device) -> Execution:
        return CUDAExecution(device, self.cuda, recorder=self.recorder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tiny("qwen2-window", tmp_path_factory.mktemp("tiny"))


def tokens_of(assembled: Assembled, **params: Any) -> list[list[int]]:
    """Of every prompt; outputs of different lengths, so that row counts fall from key to key."""
    asked = [request(i, p, max_tokens=12 + 5 * i, **params) for i, p in enumerate(prompts_of(LENGTHS))]
    outcome = drive(assembled.engine, asked)
    return [outcome.of(i) for i in range(len(asked))]


def made(tiny: Any, platform: CapturingSim, **flags: Any) -> Assembled:
    source = replace(model_source(Path(tiny.path), tiny.config, eos_token_ids=(END,)), tokenizer_json=tokenizer_json)
    platform.recorder.vocab_size = source.spec.vocab_size
    return build(source, platform, num_blocks=200, **flags)


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
        assert platform.recorder.num_live == 2 * 5  # greedy and noise of 8, 4, 2 and 1 rows, and of one prompt
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
    assert [(key.rows, key.mode.filters) for key, _ in typical[-2:]] == [(8, True), (1, True)]
    prompts = typical[:-2]
    assert [tokens for _, tokens in prompts] == [key.tokens for key, _ in prompts]
    assert prompts[0][1] == assembled.policy.limits.max_tokens > MAX_LEN, "of several rows, where one is not that long"
    assert [key.tokens for key, _ in prompts if not key.static][-4:] == [32, 16, 3, 2]
    assert [(key.tokens, key.rows) for key, _ in prompts if key.static] == [
        (1024, 8), (1024, 4), (1024, 1), (16, 1), (16, 4)
    ]  # fmt: skip
    assert not any(key.is_decode for key, _ in prompts)
    assembled.engine.shutdown()


def captured_prompts(platform: CapturingSim) -> set[tuple[int, int]]:
    """(tokens, rows) of keys with prompts that were recorded."""
    return {(key.tokens, key.rows) for key in platform.recorder.keys if not key.is_decode}


@pytest.mark.parametrize(
    "flags",
    [{}, {"overlap": False}, {"max_num_batched_tokens": 13}, {"max_num_seqs": 3}],
    ids=["", "no overlap", "chunks", "few rows"],
)
def test_steps_with_prompts_are_captured_and_change_no_token(tiny: Any, flags: dict[str, Any]) -> None:
    """Requests come while others decode: prompts alone, with decodes, in chunks; each key again as a replay."""
    lengths = (3, 17, 40, 9, 26, 1, 33, 5, 60)

    def tokens(platform: CapturingSim, **more: Any) -> list[list[int]]:
        assembled = made(tiny, platform, **flags, **more)
        asked = [request(i, p, max_tokens=20) for i, p in enumerate(prompts_of(lengths))]

        def arrive(step: int, outcome: Any) -> None:
            if step % 3 == 1 and step // 3 < len(asked):
                assembled.engine.submit(asked[step // 3])

        found = []
        for _ in range(2):
            assembled.engine.submit(request(99, prompts_of([4])[0], max_tokens=40, salt="other"))
            outcome = drive(assembled.engine, on_step=arrive)
            found.append([outcome.of(i) for i in range(len(asked))])
            assembled.engine.reset_prefix_cache()
        assert found[0] == found[1]
        assembled.engine.shutdown()
        return found[0]

    expected = tokens(CapturingSim(), enforce_eager=True)
    platform = CapturingSim()
    assert tokens(platform) == expected
    captured = captured_prompts(platform)
    most = flags.get("max_num_seqs", 8)
    assert {rows for _, rows in captured} <= {1, min(most, 4), most} and len({rows for _, rows in captured}) > 1
    assert len({size for size, _ in captured}) > 1 or "max_num_batched_tokens" in flags
    platform = CapturingSim(graph_tokens=0)
    assert tokens(platform) == expected
    assert not captured_prompts(platform)


def test_a_key_is_prepared_though_its_rows_cannot_fill_it(tiny: Any) -> None:
    platform = CapturingSim()
    assembled = made(tiny, platform, max_model_len=40)
    warm_up(assembled, assembled.engine.device)
    assert captured_prompts(platform) == {(128, 1)}
    expected = drive(assembled.engine, [request(0, prompts_of([30])[0], max_tokens=9)]).of(0)
    eager = made(tiny, CapturingSim(), max_model_len=40, enforce_eager=True)
    assert drive(eager.engine, [request(0, prompts_of([30])[0], max_tokens=9)]).of(0) == expected


def test_a_grammar_s_rows_are_captured_in_two_halves(tiny: Any) -> None:
    """What *sample* was recorded with must be what every replay of *forward* fills, also of the first step."""
    word = StructuredOutputs(regex="[a-z]{8,12}!")

    def tokens(platform: CapturingSim, **flags: Any) -> list[list[int]]:
        return tokens_of(made(tiny, platform, **flags), structured_outputs=word, temperature=1.0, ignore_eos=False)

    expected = tokens(CapturingSim(), enforce_eager=True)
    platform = CapturingSim()
    assert tokens(platform) == expected
    assert any(key.is_decode and key.mode.grammar for key in platform.recorder.keys)
    assert not any(key.mode.grammar for key in platform.recorder.keys if not key.is_decode), "the host is between"


def test_prompts_log_probabilities_and_siblings_stay_eager(tiny: Any) -> None:
    params = {"prompt_logprobs": 1, "n": 2, "temperature": 0.7}
    expected = tokens_of(made(tiny, CapturingSim(), enforce_eager=True), **params)
    platform = CapturingSim()
    assert tokens_of(made(tiny, platform), **params) == expected
    assert all(rows > 1 for _, rows in captured_prompts(platform))
