"""Shared pieces of the CUDA platform's tests, none of which needs a GPU: a fake machine, a fake NVML, fake graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class FakeMachine:
    """A root with `/sys`, `/dev` and `/proc` below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("sys/bus/pci/devices/.keep")
        self.file("dev/.keep")

    def file(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def gpu(self, address: str = "0000:1b:00.0", *, device: int = 0x2335, nodes: bool = True) -> None:
        """One GPU on the bus; nodes: with the driver's device nodes."""
        folder = f"sys/bus/pci/devices/{address}"
        for name, text in {"vendor": "0x10de", "device": f"0x{device:04x}", "class": "0x030200"}.items():
            self.file(f"{folder}/{name}", text + "\n")
        self.file(f"{folder}/numa_node", "1\n")
        if nodes:
            self.file("dev/nvidiactl")
            self.file("dev/nvidia0")


class FakeGraph:
    """A recorded call; `log` tells what happened."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def replay(self) -> None:
        self._log.append("replay")

    def reset(self) -> None:
        self._log.append("reset")


class FakeRecorder:
    """Records by calling the function, as a real recorder does; `error` is raised instead where it is set."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.error: Exception | None = None

    def record(self, fn: Callable[[Any], Any], inputs: Any) -> tuple[FakeGraph, Any]:
        if self.error is not None:
            raise self.error
        self.log.append("record")
        return FakeGraph(self.log), fn(inputs)

    def forget(self, graph: FakeGraph) -> None:
        self.log.append("forget")


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path / "root")


@pytest.fixture
def recorder() -> FakeRecorder:
    return FakeRecorder()
