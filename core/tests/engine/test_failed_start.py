"""A start that fails gives its device back, and its own error is the one that is told."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenon_core.config import EngineConfig
from tenon_core.engine import start
from tenon_core.engine.assembly import Sockets
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.device import Device
from tenon_platforms.errors import ConfigError
from tenon_platforms.platform import Platform

pytestmark = pytest.mark.unit
CALLS: list[str] = []


class Recorded(Device):
    __slots__ = ()

    def open(self) -> None:
        CALLS.append("open")

    def synchronize(self) -> None:
        CALLS.append("synchronize")

    def close(self) -> None:
        CALLS.append("close")


class Recording(Platform):
    name = "recording"
    contract = ">=0.1,<0.2"

    def device(self, index: int = 0) -> Device:
        return Recorded()


class Incapable(Recording):
    def capabilities(self, device: Device) -> Capabilities:
        raise ConfigError("the device can do nothing")


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    monkeypatch.setattr(start, "select_platform", lambda config: (Recording({}), None))


def fail(tmp_path: Path, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        start.start_engine(EngineConfig.from_flat(model=str(tmp_path / "missing")))


def test_the_device_is_closed_where_no_model_is_found(tmp_path: Path) -> None:
    fail(tmp_path, "missing")
    assert CALLS == ["open", "synchronize", "close"]


def test_a_device_of_no_capabilities_is_closed() -> None:
    with pytest.raises(ConfigError, match="can do nothing"):
        Sockets.open(Incapable({}))
    assert CALLS == ["open", "close"]


def test_an_engine_that_cannot_answer_is_shut_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and queued work are given back before the device, as at an engine's end."""

    def refuse(*arguments: Any) -> None:
        raise ConfigError("no answer")

    nothing = SimpleNamespace(checkpoint=SimpleNamespace(tensors=SimpleNamespace(close=lambda: None)))
    engine = SimpleNamespace(shutdown=lambda: CALLS.append("shutdown"))
    assembled = SimpleNamespace(engine=engine, table=SimpleNamespace(reference_line=lambda: ""))
    monkeypatch.setattr(start, "open_model", lambda config: nothing)
    monkeypatch.setattr(start, "adjust", lambda config, sockets, opened: (None, config))
    monkeypatch.setattr(start, "effective_dtypes", lambda *arguments: (None, None))
    monkeypatch.setattr(start, "load", lambda *arguments, **named: assembled)
    monkeypatch.setattr(start, "warm_up", refuse)
    fail(tmp_path, "no answer")
    assert CALLS == ["open", "shutdown"]


def test_what_closing_raises_does_not_hide_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(self: Device) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(Recorded, "close", lost)
    with caplog.at_level(logging.WARNING):
        fail(tmp_path, "missing")
    assert "giving the device back failed: device lost" in caplog.text
