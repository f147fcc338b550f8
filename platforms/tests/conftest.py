"""Fake installations and fake machines: distributions on a temporary path, `/sys` and `/dev` trees below a folder."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MANIFEST = """
name = "{name}"
contract = "{contract}"
device_kind = "{kind}"
entry = "{package}.platform:Platform"
priority = {priority}
{extra}
"""


class FakeSite:
    """A folder of installed distributions. Every package raises when it is imported, unless code is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = [str(folder)]

    def dist_info(
        self, dist: str, version: str, entry_points: str, files: list[str] | None, *, metadata: bool = True
    ) -> Path:
        """Write a dist-info folder; files None: no RECORD at all."""
        info = self.folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        if metadata:
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        if files is not None:
            (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
        return info

    def package(self, package: str, toml: str | None, code: str | None = None, *, below: Path | None = None) -> str:
        """Write a package (dotted name) with its manifest; returns the manifest's path inside the site."""
        base = below or self.folder
        folder = base.joinpath(*package.split("."))
        folder.mkdir(parents=True)
        for part in [folder, *folder.parents]:
            if part == base:
                break
            (part / "__init__.py").write_text("raise RuntimeError('imported')\n" if code is None else "")
        if code is not None:
            (folder / "platform.py").write_text(textwrap.dedent(code))
        if toml is not None:
            (folder / "platform.toml").write_text(textwrap.dedent(toml))
        return "/".join([*package.split("."), "platform.toml"])

    def install(
        self,
        name: str,
        *,
        dist: str | None = None,
        version: str = "1.0",
        contract: str = ">=0.1,<1",
        kind: str | None = None,
        priority: int = 0,
        extra: str = "",
        hardware: str | None = None,
        toml: str | None = None,
        code: str | None = None,
        package: str | None = None,
    ) -> None:
        """Install a platform as a wheel would: files beside the dist-info folder, listed in RECORD."""
        dist = dist or f"tenon-{name}"
        package = package or dist.replace("-", "_")
        if toml is None:
            body = MANIFEST.format(
                name=name, contract=contract, kind=kind or name, package=package, priority=priority, extra=extra
            )
            toml = body if hardware is None else f"{body}[hardware]\n{textwrap.dedent(hardware)}"
        file = self.package(package, toml, code)
        self.dist_info(dist, version, f"[tenon.platforms]\n{name} = {package}\n", [file])


class FakeMachine:
    """A root with `/sys/bus/pci/devices` and `/dev`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._next = 1
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        (root / "dev").mkdir()

    def pci(self, vendor: int, device: int, class_id: int, *, render: str | None = None) -> str:
        """Put a device on the bus; returns its address."""
        address = f"{self._next // 256:04x}:{self._next % 256:02x}:00.0"
        self._next += 1
        folder = self.root / "sys/bus/pci/devices" / address
        folder.mkdir()
        (folder / "vendor").write_text(f"0x{vendor:04x}\n")
        (folder / "device").write_text(f"0x{device:04x}\n")
        (folder / "class").write_text(f"0x{class_id:06x}\n")
        if render is not None:
            (folder / "drm" / render).mkdir(parents=True)
        return address

    def node(self, path: str) -> None:
        """Make a file below the root, such as a device node."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def nvidia(self, *, nodes: bool = True) -> None:
        """One data-centre GPU of the best known vendor."""
        self.pci(0x10DE, 0x2335, 0x030200)
        if nodes:
            self.node("/dev/nvidia0")
            self.node("/dev/nvidiactl")

    def arc(self) -> None:
        """One discrete GPU of another vendor."""
        self.pci(0x8086, 0xE20B, 0x030000, render="renderD128")
        self.node("/dev/dri/renderD128")


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    folder = tmp_path / "site"
    folder.mkdir()
    return FakeSite(folder)


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path / "root")


@pytest.fixture
def importable(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """The site on `sys.path`; what was imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(site.folder))
    yield site
    for name in set(sys.modules) - before:
        file: Any = getattr(sys.modules[name], "__file__", None)
        if file and str(site.folder) in str(file):
            del sys.modules[name]
