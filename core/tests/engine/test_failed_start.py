"""A start that fails gives its device back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenon_core.config import EngineConfig
from tenon_core.engine import start
from tenon_platforms.device import Device
from tenon_platforms.errors import ConfigError
from tenon_platforms.platform import Platform

pytestmark = pytest.mark.unit
CALLS: list[str] = []


class Recorded(Device):
    __slots__ = ()

    def open(self) -> None:
        CALLS.append("open")

    def close(self) -> None:
        CALLS.append("close")


class Recording(Platform):
    name = "recording"
    contract = ">=0.1,<0.2"

    def device(self, index: int = 0) -> Device:
        return Recorded()


def test_the_device_is_closed_where_a_start_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    monkeypatch.setattr(start, "select_platform", lambda config: (Recording({}), None))
    with pytest.raises(ConfigError):
        start.start_engine(EngineConfig.from_flat(model=str(tmp_path / "missing")))
    assert CALLS == ["open", "close"]
