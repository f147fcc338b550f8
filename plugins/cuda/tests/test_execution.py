"""The lattice, and captured executables over a fake recorder: what runs when, how often, and what failure does."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenon_cuda import compiling, graphs
from tenon_cuda.execution import LARGE_MEMORY, TYPICAL_TOKENS, CUDAExecution, decode_rows, prompt_sizes
from tenon_cuda.graphs import CaptureExecutable
from tenon_cuda.options import CUDAOptions
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.device import Device
from tenon_platforms.execution import EagerExecutable, EngineLimits
from tenon_platforms.shapes import DynamicShapes, LatticeShapes, SamplingMode, ShapeKey

pytestmark = pytest.mark.unit


def key_of(rows: int = 4, *, static: bool = True, mode: SamplingMode | None = None) -> ShapeKey:
    return ShapeKey(
        tokens=rows, rows=rows, logits=rows, max_query=1, blocks=0, static=static, mode=mode or SamplingMode()
    )


def policy_of(max_rows: int = 64, *, memory: int = 0, head: str = "language_model", **settings: Any) -> Any:
    limits = EngineLimits(max_rows=max_rows, max_model_len=4096, enforce_eager=settings.pop("enforce_eager", False))
    execution = CUDAExecution(Device(), CUDAOptions(**settings), memory=memory, recorder=object())  # type: ignore[arg-type]
    model: Any = SimpleNamespace(head=SimpleNamespace(kind=head))
    return execution.shape_policy(model, limits, Capabilities()), execution


@given(most=st.integers(1, 5000))
def test_row_counts_ascend_to_the_most_and_pad_little(most: int) -> None:
    sizes = decode_rows(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] == 1
    for before, size in pairwise(sizes):
        assert size - before <= max(8, before // 4)


def test_typical_steps_are_prompts_of_every_way_and_filtered_sampling() -> None:
    policy, _ = policy_of(64, memory=LARGE_MEMORY)
    keys = list(policy.typical_keys())
    eager = [key for key in keys if not key.static]
    assert [key.tokens for key in eager] == [8192, 1024, 384, 256, 128, 64, 32, 16, 3, 2]
    assert not any(key.is_decode for key in eager)
    captured = [(key.tokens, key.rows) for key in keys if key.static and not key.is_decode]
    assert captured == [(1024, 64), (1024, 16), (1024, 4), (1024, 1), (16, 1), (16, 4)]
    assert all(policy.key(key) == key for key in keys if key.static)
    assert [(key.rows, key.mode.filters, key.mode.num_logprobs) for key in keys if key.is_decode] == [
        (64, True, 20),
        (1, True, 0),
    ]
    assert not set(keys) & set(policy.eager_keys())


def test_steps_are_compiled_ahead_where_an_executable_is_told_how(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Any] = []

    def ahead(step: Any, steps: Any) -> None:
        asked.append((step(7), list(steps)))

    def failing(step: Any, steps: Any) -> None:
        raise ValueError("no room")

    def executable(how: Any) -> CaptureExecutable:
        return CaptureExecutable(lambda inputs: inputs + 1, name="step", recorder=object(), compile_ahead=how)  # type: ignore[arg-type]

    executable(ahead).compile_ahead([(key_of(), "inputs")])
    assert asked == [(8, [(key_of(), "inputs")])]
    executable(None).compile_ahead(iter(()))
    executable(failing).compile_ahead([(key_of(), "inputs")])  # a hint: the start goes on
    assert "no room" in caplog.text


@pytest.mark.parametrize("settings", [{"kernels": "torch"}, {}])
def test_without_triton_there_is_nothing_to_compile(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda name: None if not settings else object())
    for name in ("triton", "tenon_triton", "tenon_triton.compiling"):
        monkeypatch.setitem(sys.modules, name, None)
    policy, execution = policy_of(64, **settings)
    assert execution.num_compiles == 0
    made = execution.executable(lambda inputs: pytest.fail("nothing is rehearsed"), name="step")
    made.compile_ahead([(key, None) for key in policy.eager_keys()])


def test_prompts_are_compiled_for_every_way_of_the_tables() -> None:
    from tenon_cuda.ops.warpgroup_gated import FEWEST_ROWS
    from tenon_triton.ops.gemv import MOST_TOKENS
    from tenon_triton.ops.linear_table import BANDWIDTH, FLOAT8_BANDWIDTH

    ends = {rule.max_tokens for table in (BANDWIDTH, FLOAT8_BANDWIDTH) for rule in table.rules}
    assert {end for end in ends if end >= 16} <= set(TYPICAL_TOKENS)
    assert set(range(2, MOST_TOKENS)) <= set(TYPICAL_TOKENS), "a kernel for each number; the last is a decode's"
    assert any(max(ends) < tokens < FEWEST_ROWS for tokens in TYPICAL_TOKENS)


def test_row_counts_are_those_of_the_docstring() -> None:
    assert decode_rows(40) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert decode_rows(5) == (1, 2, 4, 5)
    assert len(decode_rows(256)) == 19
    assert decode_rows(1024)[-9:-7] == (512, 576)


@given(max_rows=st.integers(1, 1100), share=st.floats(0, 1))
def test_every_decode_step_has_a_static_key_that_holds_it(max_rows: int, share: float) -> None:
    policy, _ = policy_of(max_rows)
    rows = 1 + int(share * (max_rows - 1))
    need = ShapeKey(tokens=rows, rows=rows, logits=rows, max_query=1, blocks=17)
    key = policy.key(need)
    assert key.static and key.rows >= rows and key.tokens == key.logits == key.rows
    assert key in [*policy.eager_keys(), *policy.lazy_keys()]


def test_powers_of_two_and_the_most_are_captured_at_the_start() -> None:
    policy, _ = policy_of(40)
    assert {key.rows for key in policy.eager_keys() if key.is_decode} == {1, 2, 4, 8, 16, 32, 40}
    assert {key.rows for key in policy.lazy_keys() if key.is_decode} == {24}


def test_one_prompt_is_captured_at_the_start() -> None:
    def first(**settings: Any) -> set[tuple[int, int]]:
        return {(key.tokens, key.rows) for key in policy_of(40, **settings)[0].eager_keys() if not key.is_decode}

    assert (first(), first(graph_tokens=48), first(graph_tokens=0)) == ({(128, 1)}, {(48, 1)}, set())


def prompts_need(tokens: int, rows: int = 1, **fields: Any) -> ShapeKey:
    return ShapeKey(**{"tokens": tokens, "rows": rows, "logits": rows, "max_query": tokens, "blocks": 20, **fields})


@given(max_rows=st.integers(1, 1100), most=st.integers(2, 3000), share=st.floats(0, 1), tokens=st.integers(1, 3000))
def test_every_small_step_with_prompts_has_a_static_key_that_holds_it(
    max_rows: int, most: int, share: float, tokens: int
) -> None:
    policy, _ = policy_of(max_rows, graph_tokens=most)
    rows = 1 + int(share * (min(max_rows, tokens) - 1))
    key = policy.key(prompts_need(tokens, rows, max_query=max(tokens - rows + 1, 2)))
    if tokens > min(most, policy.limits.max_tokens):
        assert not key.static
        return
    assert key.static and not key.is_decode
    assert key.tokens >= tokens and key.rows >= rows and key.logits == key.rows
    assert key.tokens <= policy.limits.max_tokens and key.rows <= max_rows, "core has room for no more"
    assert key.tokens < max(2 * tokens, 17)
    assert key in [*policy.eager_keys(), *policy.lazy_keys()]


def test_sizes_of_steps_with_prompts_are_few() -> None:
    few = ((16, 1), (16, 4), (16, 16), (32, 1), (32, 4), (32, 16), (32, 20), (40, 1), (40, 4), (40, 16), (40, 20))
    assert prompt_sizes(40, 20) == few
    assert prompt_sizes(0, 8) == prompt_sizes(1, 8) == ()
    assert len(prompt_sizes(1024, 1024)) == 52 and all(rows <= tokens for tokens, rows in prompt_sizes(1024, 1024))
    assert [tokens for tokens, rows in prompt_sizes(1024, 1)] == [16, 32, 64, 128, 256, 384, 512, 768, 1024]


def test_what_the_host_must_see_and_what_is_rare_is_not_padded() -> None:
    policy, _ = policy_of()
    assert policy.key(prompts_need(300, 3)).static
    for need in (
        prompts_need(1025),
        prompts_need(300, logits=300),  # log-probabilities of the prompt
        prompts_need(300, logits=4),  # samples born at its end
        prompts_need(300, mode=SamplingMode(grammar=True)),
        prompts_need(300, mode=SamplingMode(noise=True, num_logprobs=0)),
    ):
        assert policy.key(need) is need
    assert not policy.strict
    for settings in ({"graph_tokens": 0}, {"head": "pool"}, {"head": "classify"}):
        assert not policy_of(**settings)[0].key(prompts_need(30)).static  # type: ignore[arg-type]


def test_eager_keys_come_largest_first() -> None:
    policy, _ = policy_of(24)
    rows = [key.rows for key in policy.eager_keys() if key.is_decode]
    assert rows == sorted(rows, reverse=True)
    assert {key.mode for key in policy.eager_keys()} == {SamplingMode(), SamplingMode(noise=True)}


def test_the_budget_follows_card_option_and_flag() -> None:
    assert policy_of()[0].limits.max_tokens == 2048
    assert policy_of(memory=LARGE_MEMORY)[0].limits.max_tokens == 8192
    assert policy_of(step_tokens=512)[0].limits.max_tokens == 512
    assert policy_of(4096, step_tokens=512)[0].limits.max_tokens == 4096


def test_graphs_can_be_turned_off_by_option_and_flag() -> None:
    for settings in ({"graphs": False}, {"enforce_eager": True}):
        policy, execution = policy_of(**settings)
        assert isinstance(policy, DynamicShapes)
        assert isinstance(execution.executable(lambda call: call, name="step"), EagerExecutable)
    policy, execution = policy_of(graph_rows=16)
    assert isinstance(policy, LatticeShapes)
    assert policy.decode_rows[-1] == 16
    assert isinstance(execution.executable(lambda call: call, name="step"), CaptureExecutable)


class Step:
    """A step function that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, inputs: Any) -> str:
        self.calls += 1
        return f"{inputs} {self.calls}"


def test_preparing_warms_up_records_and_replays_once(recorder: Any) -> None:
    step = Step()
    executable = CaptureExecutable(step, name="step", recorder=recorder)
    executable.prepare(key_of(), "inputs")
    assert (step.calls, recorder.log) == (2, ["record", "replay"])  # once for real, once into the graph
    executable.prepare(key_of(), "inputs")
    assert step.calls == 2
    assert executable.run(key_of(), "inputs") == "inputs 2"  # the graph's own outputs
    assert recorder.log[-1] == "replay"
    assert (executable.num_captures, executable.num_compiles) == (1, 0)


def test_a_key_that_comes_by_surprise_runs_once_for_real(recorder: Any) -> None:
    step = Step()
    executable = CaptureExecutable(step, name="step", recorder=recorder)
    assert executable.run(key_of(), "first") == "first 1"
    assert recorder.log == ["record"]  # recorded after the real step, and not replayed
    assert executable.run(key_of(), "second") == "first 2"
    assert recorder.log == ["record", "replay"]


def test_a_tensor_of_a_first_step_lies_where_replays_leave_theirs(recorder: Any) -> None:
    """Who is recorded with it as input must read, at a replay, what the replay before filled."""
    executable = CaptureExecutable(lambda inputs: inputs * 2, name="forward", recorder=recorder)
    first = executable.run(key_of(), torch.ones(3))
    assert first.tolist() == [2, 2, 2]
    assert executable.run(key_of(), torch.ones(3)) is first
    recorder.error = torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
    assert executable.run(key_of(8), torch.ones(8)).shape == (8,)


def test_a_steady_key_is_found_by_identity(recorder: Any) -> None:
    executable = CaptureExecutable(Step(), name="step", recorder=recorder)
    one, other = key_of(4), key_of(8)
    for key in (one, other, one, one, other, one):
        executable.run(key, key.rows)
    assert recorder.log == ["record", "record", *["replay"] * 4]
    assert executable.run(one, 4) == "4 2"
    assert executable.run(other, 8) == "8 4"


def test_other_keys_run_eagerly(recorder: Any) -> None:
    step = Step()
    executable = CaptureExecutable(step, name="step", recorder=recorder)
    executable.prepare(key_of(static=False), "x")
    assert executable.run(key_of(static=False), "x") == "x 1"
    assert executable.run(key_of(static=False), "x") == "x 2"
    assert recorder.log == []


def test_what_cannot_be_recorded_goes_on_eagerly(recorder: Any, caplog: pytest.LogCaptureFixture) -> None:
    executable = CaptureExecutable(Step(), name="step", recorder=recorder)
    recorder.error = torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
    with caplog.at_level(logging.WARNING):
        assert [executable.run(key_of(), "x") for _ in range(3)] == ["x 1", "x 2", "x 3"]
    assert len(caplog.records) == 1
    assert "runs eagerly" in caplog.text
    recorder.error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(torch.AcceleratorError):
        executable.run(key_of(8), "x")


def test_graphs_of_modes_that_clients_choose_are_bounded(
    recorder: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs, "MOST_OTHER_GRAPHS", 3)
    executable = CaptureExecutable(Step(), name="step", recorder=recorder)

    def served(num_logprobs: int) -> list[str]:
        key = replace(key_of(), mode=SamplingMode(num_logprobs=num_logprobs))
        begin = len(recorder.log)
        executable.run(key, "x")
        executable.run(key, "x")
        return recorder.log[begin:]

    with caplog.at_level(logging.WARNING):
        assert [served(k) for k in range(5)] == [*[["record", "replay"]] * 3, [], []]
    assert len(caplog.records) == 1
    assert "3 graphs" in caplog.text
    assert served(0) == ["replay", "replay"]  # what is there stays
    for mode in (SamplingMode(), SamplingMode(noise=True, filters=True)):  # what most ask for is not counted
        executable.run(replace(key_of(8), mode=mode), "x")
        assert recorder.log[-1] == "record"
    executable.release()
    assert served(7) == ["record", "replay"]


def test_release_gives_every_graph_back_and_forgets(recorder: Any) -> None:
    executable = CaptureExecutable(Step(), name="step", recorder=recorder)
    for rows in (8, 4):
        executable.prepare(key_of(rows), rows)
    executable.release()
    assert recorder.log.count("forget") == 2
    assert executable.run(key_of(4), 4) == "4 5"  # a real step again
