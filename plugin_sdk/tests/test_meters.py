"""The meters of level 4: what counts as a leak, and that it is named."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tenon_platforms.device import Device, MemoryInfo
from tenon_plugin_sdk.conformance.meters.leaks import MemorySamples, grown
from tenon_plugin_sdk.conformance.meters.memory import heap_bytes, read_meters, settled
from tenon_plugin_sdk.conformance.meters.origins import left_behind, untracked_growth

pytestmark = pytest.mark.unit


class Kept:
    """What is left behind."""


@pytest.mark.parametrize(
    ("values", "growth"),
    [
        ([5.0] * 10, 0.0),
        ([5, 5, 5, 5, 5, 9, 9, 9, 9, 9], 0.0),  # one step up, wherever it is
        ([5, 9, 9, 9, 9, 9, 9, 9, 9, 9], 0.0),
        ([5, 5, 90, 5, 5, 5, 70, 5, 5, 5], 0.0),  # what is there now and then
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 2.0),
        ([0, 1, 50, 3, 4, 5, 60, 7, 8, 9], 1.0),  # a leak under noise
        ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 0.0),
        ([1.0], 0.0),
    ],
)
def test_a_leak_grows_from_segment_to_segment(values: list[float], growth: float) -> None:
    assert grown(values) == growth


def samples_of(work: Any) -> dict[str, float]:
    """What grows when this is done ten times."""
    with settled():
        samples = MemorySamples(device=Device(), rounds=10)
        for _ in range(10):
            work()
            samples.take()
    return samples.growth()


def allocator() -> Any:
    """The C library, whose malloc and free take and give whole addresses."""
    c = ctypes.CDLL(None)
    c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    return c


def test_sampling_itself_holds_nothing() -> None:
    assert samples_of(lambda: None) == {}


def test_one_object_a_round_is_named() -> None:
    kept: list[Any] = []
    found = samples_of(lambda: kept.append(Kept()))
    assert found[f"objects of {Kept.__module__}.Kept"] == pytest.approx(1.0)


def test_what_the_collector_does_not_know_is_named_too() -> None:
    kept: list[Any] = [0.25]
    assert samples_of(lambda: kept.append(kept[-1] * 1.5))["blocks of Python's allocator"] >= 1.0
    assert untracked_growth(lambda: kept.append(kept[-1] * 1.5), 3)["float"] == pytest.approx(1.0, abs=0.4)


@pytest.mark.skipif(heap_bytes() is None, reason="this C library does not tell what is held of malloc")
def test_bytes_that_c_code_keeps() -> None:
    c = allocator()
    kept: list[int] = []
    try:
        found = samples_of(lambda: kept.append(c.malloc(4096)))
    finally:
        for one in kept:
            c.free(one)
    assert found["bytes of malloc's heap"] == pytest.approx(4112, rel=0.02)


@pytest.mark.skipif(heap_bytes() is None, reason="this C library does not tell what is held of malloc")
def test_pieces_that_malloc_keeps_back_are_no_growth() -> None:
    c = allocator()
    sizes = iter(range(536, 1033, 16))

    def work() -> None:
        size = next(sizes)  # freed for the first time
        for one in [c.malloc(size) for _ in range(5)]:
            c.free(one)

    assert "bytes of malloc's heap" not in samples_of(work)


def test_the_line_that_keeps_is_named() -> None:
    kept: list[Any] = []

    def work() -> None:
        kept.extend([Kept(), Kept()])

    def lines_here(work: Callable[[], None]) -> list[str]:
        return [line for line in left_behind(work, 3) if "test_meters.py:" in line]

    assert len(lines_here(work)) == 1
    assert lines_here(lambda: None) == []


def test_types_that_come_later_are_no_leak_of_the_samples() -> None:
    with settled():
        samples = MemorySamples(device=Device(), rounds=5)
        for number in range(5):
            kept: list[Any] = [type(f"Later{number}", (), {})()]
            samples.take()
            kept.clear()
    assert "objects of array.array" not in samples.growth()


@dataclass(slots=True, kw_only=True)
class Measuring(Device):
    """A device that tidies up before it measures, as the contract's default does or by itself."""

    budget: int = 0

    def memory(self) -> MemoryInfo:
        return MemoryInfo(free=1, total=self.budget, peak=1) if self.budget else Device.memory(self)


def test_a_device_in_the_hosts_memory_says_so() -> None:
    assert Device().memory().is_host
    assert Measuring().memory().is_host
    assert not Measuring(budget=2, shares_host_memory=True).memory().is_host
    assert "bytes of the device" in read_meters(Measuring(budget=2))
    assert "bytes of the device" not in read_meters(Measuring())
