"""torch's device `sim` by itself: the host's results on memory that the host cannot touch."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tenon_platforms.device import DeviceInfo, Fault
from tenon_platforms.errors import PluginError
from tenon_sim.device import SimDevice
from tenon_sim.faults import BrokenContractError, SimFaultError
from tenon_sim.options import SimOptions

pytestmark = pytest.mark.unit
MIB = 1 << 20


@pytest.fixture(scope="module")
def sim() -> Iterator[torch.device]:
    """The device, open and synchronous."""
    device = SimDevice()
    device.open()
    yield device.torch_device
    device.close()


@pytest.fixture
def other() -> Iterator[SimDevice]:
    """A second device, asynchronous, with little memory of its own."""
    device = SimDevice(info=DeviceInfo(id=1, name="second"), is_async=True, options=SimOptions(memory_mb=1))
    device.open()
    yield device
    device.close()


def _written(x: Tensor, out: Callable[[Tensor], Tensor]) -> Tensor:
    y = x.clone()
    out(y)
    return y


OPERATIONS: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (x * 2 + 1).sin().sum(0),
    "product": lambda x: x @ x.t(),
    "views": lambda x: x[1:, ::2].t().unsqueeze(0).expand(2, -1, -1).reshape(-1),
    "view of a type": lambda x: x.view(torch.int32),
    "in place through a view": lambda x: _written(x, lambda y: y[1].mul_(3)),
    "assignment": lambda x: _written(x, lambda y: y.__setitem__(torch.arange(2, device=y.device), 7.0)),
    "masked": lambda x: x.masked_fill(x > 0, float("-inf")).softmax(-1),
    "where": lambda x: torch.where(x > 0, x, 1.0),
    "index": lambda x: x[torch.tensor([2, 0]).to(x.device)],
    "boolean index": lambda x: x[x > 0],
    "several results": lambda x: x.topk(2),
    "list": lambda x: torch.cat(x.unbind(0)),
    "out": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "factories": lambda x: torch.arange(1, 9, 2, device=x.device, dtype=torch.int32),
    "types": lambda x: x.to(torch.bfloat16).to(torch.float64),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "einsum": lambda x: torch.einsum("ab,cb->ac", x, x),
    "own generator": lambda x: torch.rand(3, generator=torch.Generator(x.device).manual_seed(5), device=x.device),
    "number": lambda x: x.sum().item(),
    "to the host": lambda x: torch.tensor(x.tolist()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_give_what_the_host_gives(sim: torch.device, name: str) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    found, expected = OPERATIONS[name](x.to(sim)), OPERATIONS[name](x)
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for ours, theirs in pairs:
        if isinstance(theirs, Tensor):
            assert isinstance(ours, Tensor)
            assert ours.device == sim or name == "to the host"
            assert torch.equal(ours.cpu(), theirs) and ours.stride() == theirs.stride()
        else:
            assert ours == theirs


def test_gradients_and_compiled_functions(sim: torch.device) -> None:
    x = torch.randn(5)
    leaf = x.to(sim).requires_grad_()
    torch.compile(lambda t: t.sin().sum(), backend="aot_eager")(leaf).backward()
    assert leaf.grad is not None and leaf.grad.device == sim
    assert torch.allclose(leaf.grad.cpu(), x.cos())


def test_custom_operations_of_the_host_run_on_it(sim: torch.device) -> None:
    with torch.library._scoped_library("tenon_sim_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        found = torch.ops.tenon_sim_test.twice(torch.ones(3, device=sim))
    assert found.device == sim and found.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy(),
        lambda x: x + torch.ones(3),
        lambda x: x.copy_(torch.ones(2)),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.ones(4, 2).index_select(0, x.int()),
        lambda x: torch.cat((x, torch.ones(1))),
        lambda x: torch.from_numpy(torch.ones(3).numpy()).mul_(x),
    ],
)
def test_the_host_does_not_get_at_it(sim: torch.device, read: Callable[[Tensor], object]) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"device|size of tensor"):
        read(torch.ones(3, device=sim))


def test_two_devices_do_not_mix(sim: torch.device, other: SimDevice) -> None:
    first, second = torch.ones(3, device=sim), torch.full((3,), 2.0, device=other.torch_device)
    with pytest.raises(RuntimeError, match="device"):
        first + second
    assert first.to(other.torch_device).add(second).to(sim).tolist() == [3.0] * 3
    with pytest.raises(SimFaultError, match="simulated device 1") as caught:
        other.zeros((MIB,), torch.float32)
    assert other.classify_fault(caught.value) is Fault.OUT_OF_MEMORY
    assert torch.zeros(MIB, device=sim).sum() == 0  # the first has its own memory


def test_results_of_operations_are_counted(other: SimDevice) -> None:
    before = other.memory().free
    made = torch.ones(1000, device=other.torch_device).cumsum(0)
    assert before - other.memory().free == 4000
    del made
    assert other.memory().free == before


def test_a_write_past_the_end_is_told(other: SimDevice) -> None:
    tensor = other.zeros((4,), torch.float32)
    ctypes.memset(tensor.data_ptr() + 16, 0, 1)
    del tensor
    gc.collect()
    with pytest.raises(BrokenContractError, match="1 buffers were written to outside"):
        other.synchronize()
    other.synchronize()


def test_an_operation_of_the_host_comes_after_the_queue(other: SimDevice) -> None:
    value, gate = other.zeros((2,), torch.float32), threading.Event()

    def slow() -> None:
        gate.wait(10)
        value.fill_(1)

    other.submit(slow)
    threading.Timer(0.05, gate.set).start()
    assert value.add(1).tolist() == [2.0, 2.0]


def test_an_error_of_the_queue_comes_with_the_next_synchronization(other: SimDevice) -> None:
    value = other.zeros((2,), torch.float32)
    other.submit(lambda: value.add_(torch.ones(2)) and None)
    assert value.tolist() == [0.0, 0.0]  # reading is none
    with pytest.raises(RuntimeError, match="device"):
        other.synchronize()
    other.synchronize()


def test_another_device_in_torchs_place_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenon_sim import native

    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    with pytest.raises(PluginError, match="taken by 'npu'"):
        native.native.__wrapped__()
