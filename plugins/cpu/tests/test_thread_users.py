"""Engines of one process share the native threads: a running one keeps them when another closes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenon_cpu import device as device_module
from tenon_cpu import native
from tenon_cpu.device import CPUDevice
from tenon_cpu.thread_users import ThreadUsers
from tenon_platforms.device import DeviceInfo

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(native.why_not() is not None, reason="no native library here"),
]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices that other tests left open have no say here."""
    monkeypatch.setattr(device_module, "USERS", ThreadUsers())
    before = native.num_threads()
    native.set_threads(1)
    yield
    native.set_threads(before)


def device(threads: int) -> CPUDevice:
    return CPUDevice(info=DeviceInfo(id=0, name="host"), threads=threads)


def test_threads_stay_as_long_as_somebody_uses_them() -> None:
    first, second = device(2), device(2)
    first.open()
    first.open()  # again is once
    second.open()
    second.close()
    second.close()
    assert native.num_threads() == 2, "the first still computes on them"
    first.close()
    assert native.num_threads() == 1


def test_the_latest_one_says_how_many() -> None:
    small, large, other = device(1), device(2), device(1)
    for one in (small, large, other):
        one.open()
    assert native.num_threads() == 1
    other.close()
    assert native.num_threads() == 2, "it is the later of two equal ones that is gone"
    small.close()
    assert native.num_threads() == 2
    large.close()
    assert native.num_threads() == 1


def test_equal_threads_are_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = device(2), device(2)
    first.open()
    with monkeypatch.context() as patch:
        patch.setattr(native, "set_threads", lambda *arguments: pytest.fail("an engine may be computing"))
        second.open()
        second.close()
    first.close()
    assert native.num_threads() == 1
