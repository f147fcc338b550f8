"""The simulated device by itself: its queue, its memory, its faults, and what it refuses."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tenon_platforms.device import DeviceInfo, Fault
from tenon_platforms.errors import ConfigError
from tenon_platforms.pools import Pool
from tenon_sim.device import SimDevice
from tenon_sim.faults import BrokenContractError, SimFaultError
from tenon_sim.options import SimOptions

pytestmark = pytest.mark.unit


@pytest.fixture
def device() -> Any:
    alone = DeviceInfo(id=7, name="alone")  # what other tests left on the first device is in its memory
    made = SimDevice(info=alone, is_async=True, options=SimOptions(memory_mb=1, devices=8))
    made.open()
    yield made
    made.close()


def hold(device: SimDevice) -> threading.Event:
    """Stop the queue until the event is set."""
    gate = threading.Event()
    device.submit(lambda: gate.wait(10) and None)
    return gate


def test_a_copy_reads_its_source_when_it_runs(device: SimDevice) -> None:
    source, target = device.host_buffer((4,), torch.int32), device.zeros((4,), torch.int32)
    source.fill_(1)
    gate = hold(device)
    device.copy(target, source)
    done = device.event()
    assert not done.is_done()
    source.fill_(2)  # too early: what a forgotten rotation of host buffers does
    gate.set()
    done.wait()
    assert target.tolist() == [2, 2, 2, 2]


def test_a_result_read_too_early_is_garbage(device: SimDevice) -> None:
    result, value = device.host_buffer((4,), torch.int32), device.zeros((4,), torch.int32)
    result.fill_(7)
    gate = hold(device)
    device.copy(result, value)
    assert all(abs(item) > 1 << 24 for item in result.tolist())
    gate.set()
    device.synchronize()
    assert result.tolist() == [0, 0, 0, 0]


def test_work_runs_in_order(device: SimDevice) -> None:
    seen: list[int] = []
    for index in range(50):
        device.submit(lambda index=index: seen.append(index))
    device.synchronize()
    assert seen == list(range(50))


def test_an_error_comes_with_the_next_event_and_only_there(device: SimDevice) -> None:
    def fail() -> None:
        raise ValueError("bad work")

    device.submit(fail)
    first, second = device.event(), device.event()
    for _ in range(2):
        with pytest.raises(ValueError, match="bad work"):
            first.wait()
    second.wait()


def test_a_lost_device_stays_lost(device: SimDevice) -> None:
    def fail() -> None:
        raise SimFaultError("gone", Fault.LOST)

    device.submit(fail)
    for _ in range(2):
        with pytest.raises(SimFaultError) as caught:
            device.synchronize()
    assert device.classify_fault(caught.value) is Fault.LOST


def test_memory_is_counted_and_ends(device: SimDevice) -> None:
    device.reset_peak()  # other tests' devices had the same memory
    before = device.memory()
    held = device.zeros((512, 256), torch.float32)  # half a MiB
    assert device.memory().free == before.free - 512 * 1024
    with pytest.raises(SimFaultError, match="can't allocate") as caught:
        device.zeros((512, 512), torch.float32)
    assert device.classify_fault(caught.value) is Fault.OUT_OF_MEMORY
    del held
    assert device.memory().free == before.free
    assert device.memory().peak == before.peak + 512 * 1024


def test_uninitialized_memory_is_garbage(device: SimDevice) -> None:
    assert (device.empty((8,), torch.int32).abs() > 1 << 24).all()
    assert device.empty((8,), torch.float32).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_no_64_bit_numbers(device: SimDevice, dtype: torch.dtype) -> None:
    wide = torch.zeros(2, dtype=dtype)
    for make in (device.empty, device.zeros, device.host_buffer):
        with pytest.raises(BrokenContractError, match="64-bit"):
            make((2,), dtype)
    with pytest.raises(BrokenContractError, match="64-bit"):
        device.copy(torch.zeros(2, dtype=dtype), wide)


def test_a_copy_changes_neither_shape_nor_type(device: SimDevice) -> None:
    with pytest.raises(BrokenContractError, match="neither type nor shape"):
        device.copy(device.zeros((2, 2), torch.int32), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(BrokenContractError, match="neither type nor shape"):
        device.copy(device.zeros((2,), torch.float32), torch.zeros(2, dtype=torch.int32))


def test_it_opens_and_closes_again() -> None:
    device = SimDevice(is_async=True)
    for _ in range(3):
        device.open()
        target = device.zeros((1,), torch.int32)
        device.copy(target, torch.ones(1, dtype=torch.int32))
        device.synchronize()
        assert target.item() == 1
        device.close()


def test_options_are_checked() -> None:
    for options in ({"character": "odd"}, {"fault_kind": "odd"}, {"delay_ms": -1.0}, {"memory_mb": 0}, {"what": 1}):
        with pytest.raises(ConfigError):
            SimOptions.read(options)


def test_a_device_puts_its_own_pools_to_sleep() -> None:
    alone, options = DeviceInfo(id=6, name="alone"), SimOptions(memory_mb=1, devices=8)
    devices = [SimDevice(info=alone, options=options) for _ in range(2)]  # of two engines in one process
    tensors = []
    for number, device in enumerate(devices):
        device.open()
        with device.pool(Pool.WEIGHTS):
            tensors.append(device.zeros((16,), torch.float32).fill_(number))
    assert devices[0].sleep(tuple(Pool)) == 64
    assert tensors[1].tolist() == [1.0] * 16
    devices[0].wake(tuple(Pool))
    assert tensors[0].tolist() == [0.0] * 16
