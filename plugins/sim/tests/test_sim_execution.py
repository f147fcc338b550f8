"""Executables of the simulated device: what a compiler or a captured graph would freeze may not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tenon_platforms.execution import EngineLimits, ExecutableKind
from tenon_platforms.shapes import GREEDY, SamplingMode, ShapeKey
from tenon_sim.device import SimDevice
from tenon_sim.execution import SimExecutable, static_lattice
from tenon_sim.faults import BrokenContractError
from tenon_sim.options import SimOptions

pytestmark = pytest.mark.unit
KEY = ShapeKey(tokens=4, rows=4, logits=4, max_query=1, blocks=1, static=True)
TRACE, CAPTURE = ExecutableKind.TRACE, ExecutableKind.CAPTURE


@dataclass(slots=True, kw_only=True)
class Inputs:
    x: Tensor  # moved to the device, where it is not there yet
    count: int = 0

    def __post_init__(self) -> None:
        self.x = self.x.to("sim")


@pytest.fixture
def make() -> Any:
    """make(fn, kind) -> an executable on a device of its own."""
    devices: list[SimDevice] = []

    def build(fn: Callable[[Any], Any], kind: ExecutableKind = TRACE, **options: Any) -> SimExecutable:
        device = SimDevice(is_async=True, options=SimOptions(**options))
        device.open()
        devices.append(device)
        return SimExecutable(device, fn, name="fn", kind=kind)

    yield build
    for device in devices:
        device.close()


def run(executable: SimExecutable, inputs: Any, key: ShapeKey = KEY) -> Any:
    outputs = executable.run(key, inputs)
    executable._device.synchronize()
    return outputs


def test_a_trace_answers_and_counts(make: Any) -> None:
    executable = make(lambda inputs: {"twice": inputs.x * 2})
    executable.prepare(KEY, Inputs(x=torch.zeros(4)))
    assert executable.num_compiles == 1
    for value in range(3):
        assert run(executable, Inputs(x=torch.full((4,), float(value))))["twice"].tolist() == [2.0 * value] * 4
    assert executable.num_compiles == 1
    late = ShapeKey(tokens=8, rows=8, logits=8, max_query=1, blocks=1, static=True)
    assert run(executable, Inputs(x=torch.ones(8)), late)["twice"].tolist() == [2.0] * 8
    assert executable.num_compiles == 2


def test_a_constant_is_not_taken_for_a_tensor_that_is_gone(make: Any) -> None:
    """Python gives an id again: the first run keeps what it makes, the second does not, and the program is the same."""
    kept: list[Tensor] = []

    def step(inputs: Any) -> Tensor:
        total = inputs.x
        for _ in range(10):
            kept.append(inputs.x + 1)
            if len(kept) > 10:
                kept.pop()
            total = total + torch.tensor((0, 2, 4, 6), dtype=torch.uint8, device="sim")
        return total

    executable = make(step)
    executable.prepare(KEY, Inputs(x=torch.zeros(4)))
    assert run(executable, Inputs(x=torch.zeros(4))).tolist() == [0.0, 20.0, 40.0, 60.0]


def test_a_run_returns_before_it_is_done(make: Any) -> None:
    executable = make(lambda inputs: inputs.x + 1, delay_ms=50)
    executable.prepare(KEY, Inputs(x=torch.zeros(4)))
    inputs = Inputs(x=executable._device.zeros((4,), torch.float32))
    outputs = executable.run(KEY, inputs)
    assert not executable._device.event().is_done()
    assert outputs.tolist() == [1.0] * 4  # an operation of the host comes after what is queued


@pytest.mark.parametrize(
    "fn",
    [
        lambda inputs: inputs.x * inputs.x.sum().item(),
        lambda inputs: inputs.x * float(inputs.x[0]),
        lambda inputs: inputs.x if inputs.x[0] > 0 else -inputs.x,
        lambda inputs: torch.tensor(inputs.x.tolist()),
        lambda inputs: torch.from_numpy(inputs.x.numpy()),
        lambda inputs: inputs.x[inputs.x > 0],
        lambda inputs: inputs.x.nonzero(),
        lambda inputs: inputs.x.unique(),
        lambda inputs: torch.masked_select(inputs.x, inputs.x > 0),
        lambda inputs: inputs.x.repeat_interleave(inputs.x.int()),
        lambda inputs: torch.where(inputs.x > 0)[0],
    ],
)
@pytest.mark.parametrize("kind", [TRACE, CAPTURE])
def test_values_stay_on_the_device(make: Any, fn: Any, kind: ExecutableKind) -> None:
    with pytest.raises(BrokenContractError, match=r"host|depends on values"):
        make(fn, kind).prepare(KEY, Inputs(x=torch.ones(4)))


def test_masks_with_one_value_keep_their_shape(make: Any) -> None:
    def fn(inputs: Inputs) -> Tensor:
        y = inputs.x.clone()
        y[y > 0] = 5.0
        return y

    executable = make(fn)
    executable.prepare(KEY, Inputs(x=torch.zeros(4)))
    assert run(executable, Inputs(x=torch.tensor([-1.0, 1.0, 0.0, 2.0]))).tolist() == [-1.0, 5.0, 0.0, 5.0]


def test_numbers_of_the_host_are_frozen(make: Any) -> None:
    executable = make(lambda inputs: inputs.x * inputs.count)
    executable.prepare(KEY, Inputs(x=torch.ones(4), count=2))
    run(executable, Inputs(x=torch.ones(4), count=2))
    with pytest.raises(BrokenContractError, match="depends on something"):
        run(executable, Inputs(x=torch.ones(4), count=3))


@pytest.mark.parametrize("counts", [(2, 3), (3, 2)])
def test_the_program_may_not_grow_or_shrink(make: Any, counts: tuple[int, int]) -> None:
    def fn(inputs: Inputs) -> Tensor:
        y = inputs.x
        for _ in range(inputs.count):
            y = y.sin()
        return y

    executable = make(fn)
    executable.prepare(KEY, Inputs(x=torch.ones(4), count=counts[0]))
    with pytest.raises(BrokenContractError, match=r"end of the program|ended after"):
        run(executable, Inputs(x=torch.ones(4), count=counts[1]))


@pytest.mark.parametrize("other", [torch.ones(5), torch.ones(4, dtype=torch.int32)])
def test_inputs_keep_their_shapes(make: Any, other: Tensor) -> None:
    executable = make(lambda inputs: inputs.x + 1)
    executable.prepare(KEY, Inputs(x=torch.ones(4)))
    with pytest.raises(BrokenContractError, match="prepared was"):
        executable.run(KEY, Inputs(x=other))


def test_no_64_bit_inputs(make: Any) -> None:
    with pytest.raises(BrokenContractError, match="64-bit"):
        make(lambda inputs: inputs.x + 1).prepare(KEY, Inputs(x=torch.ones(4, dtype=torch.int64)))


def test_a_capture_wants_the_same_inputs(make: Any) -> None:
    executable = make(lambda inputs: inputs.x + 1, CAPTURE)
    x = torch.ones(4, device="sim")
    executable.prepare(KEY, Inputs(x=x))
    x.fill_(3)
    first = run(executable, Inputs(x=x))
    assert first.tolist() == [4.0] * 4
    x.fill_(5)
    assert run(executable, Inputs(x=x)) is first  # replay writes the same buffers
    assert first.tolist() == [6.0] * 4
    with pytest.raises(BrokenContractError, match="another tensor"):
        executable.run(KEY, Inputs(x=x.clone()))
    assert executable.num_compiles == 0


def test_a_capture_sees_state_that_moved(make: Any) -> None:
    state: dict[str, Tensor] = {}
    executable = make(lambda inputs: inputs.x + state["counts"], CAPTURE)
    state["counts"] = torch.ones(4, device="sim")
    x = torch.ones(4, device="sim")
    executable.prepare(KEY, Inputs(x=x))
    state["counts"] = torch.zeros(4, device="sim")  # a table that grew: the capture still reads the old one
    with pytest.raises(BrokenContractError, match="depends on something"):
        run(executable, Inputs(x=x))


def test_a_trace_runs_nothing_outside_the_lattice(make: Any) -> None:
    key = ShapeKey(tokens=3, rows=3, logits=3, max_query=1, blocks=1)
    with pytest.raises(BrokenContractError, match="outside the lattice"):
        make(lambda inputs: inputs.x).run(key, Inputs(x=torch.ones(3)))


def _need(tokens: int, rows: int, logits: int, *, blocks: int = 1, mode: SamplingMode = GREEDY) -> ShapeKey:
    return ShapeKey(
        tokens=tokens, rows=rows, logits=logits, max_query=1 if tokens == rows else 2, blocks=blocks, mode=mode
    )


@pytest.mark.parametrize("limits", [(8, None, 22), (8, 16, 22), (1, None, 1), (64, None, 5), (3, 100, 3)])
def test_every_step_the_limits_allow_has_an_eager_key(limits: tuple[int, int | None, int]) -> None:
    max_rows, max_tokens, max_blocks = limits
    model: Any = type("Spec", (), {"vocab_size": 256})
    policy = static_lattice(
        model, EngineLimits(max_rows=max_rows, max_model_len=512, max_tokens=max_tokens, max_blocks=max_blocks)
    )
    eager = set(policy.eager_keys())
    assert len(eager) == len(list(policy.eager_keys())), "a key is prepared twice"
    modes = (GREEDY, SamplingMode(noise=True, num_logprobs=3), SamplingMode(grammar=True, edits=True))
    chunk, prefills = policy.limits.fixed_chunk, policy.limits.max_prefills
    assert chunk is not None and prefills is not None
    for blocks in range(1, max_blocks + 1):
        for mode in modes:
            for rows in range(1, max_rows + 1):
                assert policy.key(_need(rows, rows, rows, blocks=blocks, mode=mode)) in eager
            for rows in range(1, prefills + 1):
                for tokens in range(rows + 1, rows * chunk + 1):
                    for logits in (0, rows, tokens, tokens + max_rows):
                        assert policy.key(_need(tokens, rows, logits, blocks=blocks, mode=mode)) in eager
