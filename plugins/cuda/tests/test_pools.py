"""Sleeping pools over a driver of host memory: the compiled source, what is kept, and what has no room."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tenon_cuda import pools
from tenon_cuda.device import CUDADevice
from tenon_cuda.pools import Library, SleepingPools, pieces
from tenon_platforms.errors import CapacityError, PluginError
from tenon_platforms.pools import Pool

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not any(map(shutil.which, pools.COMPILERS)), reason="no C compiler"),
]
GRAIN = 2 << 20
HOST = torch.device("cpu")


class FakeMemory:
    """A pool of torch's that asks for a segment a tensor."""

    def __init__(self, allocator: Any) -> None:
        pass

    def snapshot(self) -> list[dict[str, int]]:
        return [{"total_size": 2 * GRAIN, "allocated_size": GRAIN}]


class Driver:
    """The fake driver, and the source compiled for it."""

    def __init__(self, folder: Path) -> None:
        source, file = Path(__file__).with_name("fake_driver.c"), folder / "libfake.so"
        subprocess.run(["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(file), str(source)], check=True)
        built = pools.compiled(folder)
        self.calls = ctypes.CDLL(str(built))
        self.calls.tenon_pools_segments.restype = ctypes.c_size_t
        self.calls.tenon_pools_segments.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self.calls.tenon_pools_allocate.restype = ctypes.c_void_p
        self.calls.tenon_pools_allocate.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        self.calls.tenon_pools_free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        assert self.calls.tenon_pools_open(str(file).encode()) == 0
        self.fake = ctypes.CDLL(str(file))
        self.library = Library(calls=self.calls, allocator=None)

    def value(self, name: str, kind: Any = ctypes.c_size_t) -> Any:
        return kind.in_dll(self.fake, name)

    def tensor(self, size: int) -> Tensor:
        address = self.calls.tenon_pools_allocate(size, 0, None)
        assert address, "there is room"
        return view(address, size)


def view(address: int, size: int, device: torch.device = HOST) -> Tensor:
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda memory, device: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 2))
    monkeypatch.setattr(pools, "CHUNK_BYTES", 3 << 20)  # no multiple of a segment
    yield Driver(tmp_path)


def pools_of(driver: Driver, **changes: Any) -> SleepingPools:
    made: dict[str, Any] = {
        "device": HOST,
        "host_buffer": lambda shape, dtype: torch.empty(shape, dtype=dtype),
        "synchronize": lambda: None,
        "find_library": lambda: driver.library,
        "new_memory": FakeMemory,
        "view": view,
    }
    return SleepingPools(**made | changes)


def filled(driver: Driver, made: SleepingPools) -> tuple[list[Tensor], Tensor]:
    """Weights in three segments and a cache, all written."""
    with made.fill(Pool.WEIGHTS):
        weights = [driver.tensor(size) for size in (GRAIN, 5 * GRAIN + 17, 100)]
    with made.fill(Pool.KV_CACHE):
        cache = driver.tensor(3 * GRAIN)
    for tensor in (*weights, cache):
        tensor.copy_(torch.randint(0, 256, tensor.shape, dtype=torch.uint8))
    return weights, cache


def test_weights_come_back_as_they_were_and_the_cache_zeroed(driver: Driver) -> None:
    made = pools_of(driver)
    weights, cache = filled(driver, made)
    before = [tensor.clone() for tensor in weights]
    used = driver.value("fake_used").value
    assert used == (1 + 6 + 1 + 3) * GRAIN
    assert made.sleep((Pool.WEIGHTS, Pool.KV_CACHE)) == used
    assert driver.value("fake_used").value == 0
    assert made.sleep((Pool.WEIGHTS, Pool.KV_CACHE)) == 0  # again
    made.wake((Pool.WEIGHTS,))
    assert driver.value("fake_used").value == 8 * GRAIN
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
    made.wake((Pool.KV_CACHE,))
    assert not cache.any()
    assert driver.value("fake_used").value == used
    made.wake((Pool.KV_CACHE, Pool.WEIGHTS))  # awake already
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))


def test_what_has_no_room_sleeps_on_and_wakes_later(driver: Driver) -> None:
    made = pools_of(driver)
    weights, _ = filled(driver, made)
    before = [tensor.clone() for tensor in weights]
    made.sleep(tuple(Pool))
    limit = driver.value("fake_limit")
    limit.value = 7 * GRAIN  # the first segments find room, the last of the weights does not
    with pytest.raises(CapacityError, match="had for weights again: 1 of 2 bytes are free"):
        made.wake((Pool.WEIGHTS,))
    assert driver.value("fake_used").value == 0, "the part that had room was not given back"
    limit.value = 8 * GRAIN
    made.wake((Pool.WEIGHTS,))
    with pytest.raises(CapacityError, match="kv_cache"):
        made.wake((Pool.KV_CACHE,))
    limit.value = 11 * GRAIN
    made.wake(tuple(Pool))
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))


def test_a_host_without_room_leaves_everything_awake(driver: Driver) -> None:
    def full(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        raise RuntimeError("CUDA error: out of memory\nand more")

    made = pools_of(driver, host_buffer=full)
    weights, cache = filled(driver, made)
    before = [tensor.clone() for tensor in (*weights, cache)]
    with pytest.raises(CapacityError, match=r"no room for the weights' \d+ bytes, pinned: CUDA error: out of memory\n"):
        made.sleep(tuple(Pool))
    assert all(torch.equal(one, other) for one, other in zip((*weights, cache), before, strict=True))
    assert made.sleep((Pool.KV_CACHE,)) == 3 * GRAIN


def test_segments_are_freed_awake_and_asleep(driver: Driver) -> None:
    made = pools_of(driver)
    weights, cache = filled(driver, made)
    outside = driver.tensor(GRAIN)
    outside.fill_(3)
    driver.calls.tenon_pools_free(weights[0].data_ptr(), GRAIN, 0, None)
    assert driver.value("fake_syncs", ctypes.c_int).value == 1
    made.sleep(tuple(Pool))
    assert bool((outside == 3).all())
    driver.calls.tenon_pools_free(cache.data_ptr(), 3 * GRAIN, 0, None)
    driver.calls.tenon_pools_free(weights[1].data_ptr(), 5 * GRAIN + 17, 0, None)
    assert driver.value("fake_used").value == GRAIN
    assert driver.value("fake_reserved").value == 2 * GRAIN  # the outsider's, and the last of the weights'


def test_weights_freed_asleep_move_no_others(driver: Driver) -> None:
    made = pools_of(driver)
    weights, _ = filled(driver, made)
    before = [tensor.clone() for tensor in weights]
    made.sleep(tuple(Pool))
    driver.calls.tenon_pools_free(weights[0].data_ptr(), GRAIN, 0, None)
    made.wake(tuple(Pool))
    assert all(torch.equal(one, other) for one, other in zip(weights[1:], before[1:], strict=True))


def test_who_sleeps_in_inference_mode_may_do_without_it_later(driver: Driver) -> None:
    made = pools_of(driver)
    weights, _ = filled(driver, made)
    before = [tensor.clone() for tensor in weights]
    with torch.inference_mode():
        made.sleep(tuple(Pool))
    made.wake(tuple(Pool))
    made.sleep(tuple(Pool))
    with torch.inference_mode():
        made.wake(tuple(Pool))
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))


def test_a_full_device_gives_torch_nothing_and_keeps_no_addresses(driver: Driver) -> None:
    driver.value("fake_limit").value = GRAIN
    assert driver.calls.tenon_pools_allocate(2 * GRAIN, 0, None) is None
    driver.value("fake_limit").value = 8 * GRAIN
    driver.value("fake_access_error", ctypes.c_int).value = 1
    assert driver.calls.tenon_pools_allocate(2 * GRAIN, 0, None) is None
    assert driver.value("fake_used").value == driver.value("fake_reserved").value == 0


def test_many_segments(driver: Driver) -> None:
    made = pools_of(driver)
    with made.fill(Pool.WEIGHTS):
        tensors = [driver.tensor(64) for _ in range(150)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert made.sleep((Pool.WEIGHTS,)) == 150 * GRAIN
    made.wake((Pool.WEIGHTS,))
    assert [int(tensor.unique()) for tensor in tensors] == list(range(150))


def test_idle_memory_of_pools_is_counted(driver: Driver) -> None:
    made = pools_of(driver)
    assert made.idle_bytes() == 0
    with made.fill(Pool.WEIGHTS), made.fill(Pool.KV_CACHE):
        pass
    assert made.idle_bytes() == 2 * GRAIN


def test_pieces_lie_one_after_the_other() -> None:
    views = [torch.arange(5, dtype=torch.uint8), torch.arange(0, dtype=torch.uint8), torch.arange(9, dtype=torch.uint8)]
    chunks = [torch.zeros(4, dtype=torch.uint8) for _ in range(4)]
    for view, chunk in pieces(views, chunks):
        chunk.copy_(view)
    assert torch.cat(chunks).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]


def test_a_machine_without_a_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(PluginError, match="no C compiler was found") as raised:
        pools.compiled(tmp_path)
    assert raised.value.remedy is not None and "--enable-sleep-mode" in raised.value.remedy


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pools, "FLAGS", ("--no-such-flag",))
    with pytest.raises(PluginError, match="no-such-flag"):
        pools.compiled(tmp_path)


def test_a_driver_without_the_calls_is_told(driver: Driver, tmp_path: Path) -> None:
    assert driver.calls.tenon_pools_open(b"libm.so.6") == 500
    assert driver.calls.tenon_pools_open(str(tmp_path / "none.so").encode()) == 500


def test_a_device_that_was_not_made_for_it_keeps_its_memory() -> None:
    device = CUDADevice(torch_device=torch.device("cuda", 0))
    assert device.sleep(tuple(Pool)) == 0
    device.wake(tuple(Pool))
