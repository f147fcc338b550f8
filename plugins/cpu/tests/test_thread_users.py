"""Engines of one process share the native threads: a running one keeps them when another closes."""

from __future__ import annotations

import pytest

from tenon_cpu import native
from tenon_cpu.device import CPUDevice
from tenon_platforms.device import DeviceInfo

pytestmark = pytest.mark.unit


def device(threads: int) -> CPUDevice:
    return CPUDevice(info=DeviceInfo(id=0, name="host"), threads=threads)


@pytest.mark.skipif(native.why_not() is not None, reason="no native library here")
def test_threads_stay_as_long_as_somebody_uses_them() -> None:
    first, second = device(2), device(2)
    first.open()
    first.open()  # again is once
    second.open()
    second.close()
    second.close()
    assert native.num_threads() == 2, "the first still computes on them"
    third = device(1)
    third.open()
    assert native.num_threads() == 1, "the latest one says how many"
    third.close()
    assert native.num_threads() == 2
    first.close()
    assert native.num_threads() == 1


@pytest.mark.skipif(native.why_not() is not None, reason="no native library here")
def test_equal_threads_are_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = device(2), device(2)
    first.open()
    monkeypatch.setattr(native, "set_threads", lambda *arguments: pytest.fail("an engine may be computing"))
    second.open()
    second.close()
    monkeypatch.undo()
    first.close()
    assert native.num_threads() == 1
