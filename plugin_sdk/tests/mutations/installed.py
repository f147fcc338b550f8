"""`planted`: an installed platform with one bug, chosen by its option, for the levels that start engines and ranks.

The distribution is a folder on `sys.path` with a manifest and entry points, as an installed wheel leaves them; its code
is this module. Ranks find it the same way.
"""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from mutations.planting import Registry

from tenon_platforms.builtin.reference.platform import ReferencePlatform
from tenon_platforms.capabilities import Capabilities
from tenon_platforms.collectives import Collectives, TorchCollectives
from tenon_platforms.device import Device, DeviceInfo
from tenon_platforms.ops.table import OpTable
from tenon_plugin_sdk.conformance.subject import Subject

CONTRACT = ">=0.1,<0.2"
MANIFEST = f"""
name = "planted"
contract = "{CONTRACT}"
device_kind = "planted"
entry = "mutations.installed:Planted"
hidden = true

[options.bug]
type = "str"
default = ""
help = "name of the bug"
"""
ENTRIES = """
[tenon.platforms]
planted = planted_platform

[tenon.block_allocators]
leaky = mutations.memory_bugs:LeakyAllocator
"""


class Bug:
    """A correct platform; a bug overrides one method."""

    def device(self) -> Device:
        return Device()

    def register_ops(self, table: OpTable, device: Device) -> None:
        """Offer nothing."""

    def capabilities(self, honest: Capabilities) -> Capabilities:
        return honest

    def adjustments(self, requested: Any) -> list[Any]:
        return []

    def collectives(self, rank: int, size: int, address: str) -> Collectives:
        return Collectives() if size == 1 else TorchCollectives(rank=rank, size=size, address=address)


class Planted(ReferencePlatform):
    """The reference with a bug. It has two devices, so that its own collectives can be tried."""

    name: ClassVar[str] = "planted"
    contract: ClassVar[str] = CONTRACT

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.bug = bug_of(self.options["bug"])

    def probe(self) -> tuple[DeviceInfo, ...]:
        return tuple(DeviceInfo(id=place, name="planted") for place in range(2))

    def device(self, index: int = 0) -> Device:
        return self.bug.device()

    def capabilities(self, device: Device) -> Capabilities:
        return self.bug.capabilities(super().capabilities(device))

    def register_ops(self, table: OpTable, device: Device) -> None:
        self.bug.register_ops(table, device)

    def collectives(self, device: Device, *, rank: int, size: int, address: str) -> Collectives:
        return self.bug.collectives(rank, size, address)

    def adjustments(self, requested: Any, model: Any) -> list[Any]:
        return self.bug.adjustments(requested)


def bug_of(name: str) -> Bug:
    """A bug by its name; "" is none."""
    from mutations import collective_bugs, engine_bugs, memory_bugs

    known: dict[str, type[Bug]] = {"": Bug}
    for module in (memory_bugs, collective_bugs, engine_bugs):
        known |= {bug_name: bug for bug_name, (_, _, bug) in module.BUGS.items()}
    return known[name]()


@cache
def install() -> Path:
    """Put the distribution on the path, once a process."""
    folder = Path(tempfile.mkdtemp(prefix="planted"))
    package, info = folder / "planted_platform", folder / "planted-0.1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text('"""The manifest of `planted`."""\n')
    (package / "platform.toml").write_text(MANIFEST)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (info / "RECORD").write_text("planted_platform/__init__.py,,\nplanted_platform/platform.toml,,\n")
    sys.path.append(str(folder))
    return folder


def subject_of(bug: str) -> Subject:
    """The installed platform with a bug."""
    install()
    return Subject.installed("planted", {"bug": bug})


def register(registry: Registry, bugs: dict[str, tuple[str, str, type[Bug]]]) -> None:
    """A module's bugs: name -> (check, what, bug)."""
    for name, (check, what, _) in bugs.items():
        registry.add(name, check, what, lambda name=name: subject_of(name))
