"""The CPU platform's tapes in an engine: which steps they serve, that replays have the step's bits, a soak."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import drive, prompts_of, request
from equality import Reference, assert_greedy_equal

from tenon_core.engine.assembly import Assembled

native = pytest.importorskip("tenon_cpu.native")
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(native.library() is None, reason="no native library")]
Build = Callable[..., Assembled]
LENGTHS = (3, 17, 40, 70, 129)


def tapes_of(assembled: Assembled) -> Any:
    """The executable of whole steps."""
    from tenon_cpu.tape import TapeExecutable

    found = assembled.runner.step
    assert isinstance(found, TapeExecutable)
    return found


@pytest.fixture
def checked_replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Every replay is preceded by the step run eagerly on the same state; their outputs are compared bit by bit."""
    from tenon_cpu.tape import TapeExecutable

    replay, checked = TapeExecutable.run, []

    def run(self: Any, key: Any, inputs: Any) -> Any:
        if key not in self._tapes:
            return replay(self, key, inputs)
        state = self._fn.__self__._rows.state
        before = state.last_tokens.clone(), state.counts.clone()
        eager = [part.clone() for part in parts_of(self._fn(inputs))]
        state.last_tokens.copy_(before[0])
        state.counts.copy_(before[1])
        found = replay(self, key, inputs)
        assert all(torch.equal(mine, other) for mine, other in zip(parts_of(found), eager, strict=True))
        checked.append(key)
        return found

    monkeypatch.setattr(TapeExecutable, "run", run)
    yield checked


def parts_of(outputs: Any) -> list[torch.Tensor]:
    """Every tensor of a step's outputs."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    found = outputs.logprobs
    return [outputs.tokens, *([] if found is None else [found.chosen, found.rank, found.top_ids, found.top])]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"logprobs": 5},
        {"temperature": 0.9, "top_p": 0.8, "logprobs": 3},
        {"temperature": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {5: 2.0}, "logprobs": 3},
    ],
)
def test_replay_is_the_step_bit_by_bit(
    params: dict[str, Any], threads: int, build_tiny: Build, checked_replays: list[Any]
) -> None:
    assembled = build_tiny("llama", "cpu", platform_options={"threads": threads})
    prompts = prompts_of(LENGTHS)
    drive(assembled.engine, [request(i, prompt, max_tokens=20 + 7 * i, **params) for i, prompt in enumerate(prompts)])
    rows = {key.rows for key in checked_replays}
    assert rows >= {1, 2, 3, 4, 5}, "rows leave one by one, so every count was replayed"
    assert not tapes_of(assembled)._refused


@pytest.mark.parametrize("model", ["qwen3_moe", "mixtral"])
def test_which_experts_run_is_found_in_a_replay(model: str, build_tiny: Build, checked_replays: list[Any]) -> None:
    assembled = build_tiny(model, "cpu")
    prompts = prompts_of(LENGTHS)
    drive(assembled.engine, [request(i, prompt, max_tokens=20 + 7 * i) for i, prompt in enumerate(prompts)])
    assert {key.rows for key in checked_replays} >= {1, 2, 3, 4, 5}
    assert not tapes_of(assembled)._refused


@pytest.mark.parametrize("model", ["llama", "qwen3", "gemma3", "qwen3_moe", "mixtral"])
@pytest.mark.parametrize("flat", [{}, {"enforce_eager": True}, {"max_num_batched_tokens": 16}])
def test_greedy_tokens_are_those_of_torchs_kernels(
    model: str, flat: dict[str, Any], build_tiny: Build, reference_of: Callable[[str], Reference]
) -> None:
    prompts = prompts_of(LENGTHS)
    for kernels in ("native", "torch"):
        engine = build_tiny(model, "cpu", platform_options={"kernels": kernels}, **flat).engine
        for _ in range(2):  # the second time from the prefix cache
            outcome = drive(engine, [request(i, prompt) for i, prompt in enumerate(prompts)])
            for i, prompt in enumerate(prompts):
                assert_greedy_equal(outcome.of(i), reference_of(model), prompt, label=f"{model}, {kernels}, {flat}")


def test_a_step_with_torchs_products_runs_eagerly_and_says_so_once(
    build_tiny: Build, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenon_cpu.ops import native_layers
    from tenon_platforms.kernel import No

    monkeypatch.setattr(native_layers, "rms_norm", lambda spec: No("not in this test"))
    with caplog.at_level(logging.WARNING, logger="tenon_cpu.tape"):
        assembled = build_tiny("llama", "cpu")
        drive(assembled.engine, [request(i, prompt) for i, prompt in enumerate(prompts_of(LENGTHS))])
    assert tapes_of(assembled).num_tapes == 0
    (said,) = caplog.records
    assert "run eagerly: aten." in said.getMessage()


def test_captures_are_made_anew_when_a_table_moves(build_tiny: Build, checked_replays: list[Any]) -> None:
    assembled = build_tiny("llama", "cpu")
    prompts = prompts_of((9, 9))
    drive(assembled.engine, [request(i, prompt) for i, prompt in enumerate(prompts)])
    tapes = tapes_of(assembled).num_tapes
    assert tapes
    drive(assembled.engine, [request(i, prompt, presence_penalty=1.0) for i, prompt in enumerate(prompts)])
    drive(assembled.engine, [request(i, prompt) for i, prompt in enumerate(prompts)])
    assert {key.mode.penalties for key in checked_replays} == {True, False}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_timed_replay_is_a_replay_and_names_its_calls(threads: int, build_tiny: Build) -> None:
    assembled = build_tiny("llama", "cpu", platform_options={"threads": threads})
    drive(assembled.engine, [request(i, prompt) for i, prompt in enumerate(prompts_of((9, 9)))])
    tape = next(iter(tapes_of(assembled)._tapes.values()))
    last_tokens = assembled.runner._rows.state.last_tokens
    with torch.inference_mode():
        before = last_tokens.clone()
        wanted = tape.replay().tokens.clone()
        last_tokens.copy_(before)
        tape.outputs.tokens.zero_()
        calls = tape.time()
    assert torch.equal(tape.outputs.tokens, wanted)
    assert len(calls) == tape.num_calls
    assert {"tenon_prepare_inputs", "tenon_cpu_linear", "tenon_attention", "tenon_sample"} <= {
        one.name for one in calls
    }
    assert all(one.seconds >= 0 and one.params for one in calls)
    assert sum(one.seconds for one in calls) > 0


def resident_kib() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def test_a_thousand_steps_leave_memory_flat(build_tiny: Build) -> None:
    assembled = build_tiny("llama", "cpu")
    engine, steps, number = assembled.engine, 0, 0

    def round_of_requests() -> None:
        nonlocal steps, number
        requests = []
        for length in (5, 30, 60):
            number += 1
            requests.append(request(number, prompts_of((length,), seed=number)[0], max_tokens=60))
        steps += drive(engine, requests).steps

    while steps < 300:
        round_of_requests()
    gc.collect()
    executable = tapes_of(assembled)
    before, tapes, arena = resident_kib(), executable.num_tapes, executable._arena.nbytes
    while steps < 1300:
        round_of_requests()
    gc.collect()
    assert (executable.num_tapes, executable._arena.nbytes) == (tapes, arena)
    assert resident_kib() - before < 4096
