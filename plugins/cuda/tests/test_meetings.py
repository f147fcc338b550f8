"""A device's counter has one owner at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tenon_cuda.meetings import PIPE, Meetings

pytestmark = pytest.mark.unit
CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(autouse=True)
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PIPE, str(tmp_path))
    return tmp_path


def test_a_second_engine_gets_none_until_the_first_is_gone() -> None:
    meetings = Meetings()
    first = meetings.lend(CPU)
    assert first is not None and first.dtype == torch.int64 and not first.any()
    assert meetings.lend(CPU) is None
    assert meetings.lend(META) is not None, "another device has its own"
    first += 132
    meetings.take_back(CPU)
    assert meetings.lend(CPU) is first and int(first) == 132, "one for all engines that come and go"


def test_devices_that_processes_share_have_none(pipe: Path) -> None:
    (pipe / "control").touch()
    assert Meetings().lend(CPU) is None
