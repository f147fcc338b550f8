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


def test_a_service_of_somebody_else_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unseen(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", unseen)
    assert Meetings().lend(CPU) is None


def test_a_counter_that_cannot_be_made_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*size: int, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    meetings = Meetings()
    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(torch, "zeros", full)
        meetings.lend(CPU)
    assert meetings.lend(CPU) is not None
