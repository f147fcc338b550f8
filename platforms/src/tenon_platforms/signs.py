"""Hardware signs: small expressions over PCI ids, device nodes, files, libraries and kernel modules.

    {pci = {vendor = "0x1234", class = ["0x0302"], device = ["0x2200-0x22ff"], render_node = true}}
    {node = "/dev/thing[0-9]*"}   {file = "/opt/vendor/lib/*.so"}   {library = "libthing.so*"}   {module = "thing"}
    {all = [...]}   {any = [...]}

A PCI class matches by prefix, a device by id or by an inclusive range. `render_node` asks that the device's own
/dev/dri/renderD* is there too, so that one vendor's node never vouches for another's card. Evaluating reads sysfs and
/dev below a root folder; it opens no device, loads no library and imports nothing.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .toml_table import Table

LIBRARY_FOLDERS = ("/usr/local/lib", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/lib/*-linux-gnu")


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One device of the PCI bus: address, vendor, `class_id` of 24 bits. Its own id is read only where it is asked."""

    address: str
    vendor: int
    class_id: int


class Machine:
    """What the signs are read from: a root folder (`/`, or a fake tree in tests) and the environment. Reads once."""

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self.root = root
        self.environ = environ
        self._by_vendor: dict[int, list[PciDevice]] = {}
        self._device_ids: dict[str, int] = {}

    @cached_property
    def _vendors(self) -> dict[int, list[str]]:
        """Vendor id -> addresses. One small read a device, so that a bus with hundreds costs a few milliseconds."""
        folder = self.path("/sys/bus/pci/devices")
        found: dict[int, list[str]] = {}
        try:
            addresses = sorted(os.listdir(folder))  # noqa: PTH208 - names only, and speed
        except OSError:
            return {}
        for address in addresses:
            vendor = _read_id(f"{folder}/{address}/vendor")
            if vendor is not None:
                found.setdefault(vendor, []).append(address)
        return found

    def pci(self, vendor: int) -> list[PciDevice]:
        """The devices of one vendor."""
        if vendor not in self._by_vendor:
            self._by_vendor[vendor] = [
                PciDevice(address, vendor, _read_id(self.path(f"/sys/bus/pci/devices/{address}/class")) or 0)
                for address in self._vendors.get(vendor, ())
            ]
        return self._by_vendor[vendor]

    def device_id(self, device: PciDevice) -> int:
        """A device's id, of 16 bits."""
        address = device.address
        if address not in self._device_ids:
            self._device_ids[address] = _read_id(self.path(f"/sys/bus/pci/devices/{address}/device")) or 0
        return self._device_ids[address]

    def render_nodes(self, device: PciDevice) -> list[str]:
        """The /dev/dri nodes that belong to a device, whether or not they are there. Asked of matching devices only."""
        paths = glob.glob(f"{glob.escape(self.path(f'/sys/bus/pci/devices/{device.address}'))}/drm/renderD*")  # noqa: PTH207
        return [f"/dev/dri/{Path(path).name}" for path in sorted(paths)]

    def path(self, absolute: str) -> str:
        """An absolute path below the root."""
        return f"{str(self.root).rstrip('/')}/{absolute.lstrip('/')}"

    def find(self, pattern: str) -> list[str]:
        """Paths that match an absolute glob pattern, as seen from the root."""
        base = str(self.root).rstrip("/")
        full = f"{glob.escape(base)}/{pattern.lstrip('/')}"
        return [path[len(base) :] for path in sorted(glob.glob(full))]  # noqa: PTH207 - absolute patterns

    def allowed(self, path: str) -> bool:
        """Whether this process may open a node for reading and writing."""
        return os.access(self.path(path), os.R_OK | os.W_OK)


@dataclass(slots=True)
class Findings:
    """What an evaluation met on its way: evidence to print, PCI addresses, nodes that may not be opened."""

    evidence: list[str] = field(default_factory=list)
    addresses: set[str] = field(default_factory=set)
    forbidden: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Enter a piece of evidence once."""
        if text not in self.evidence:
            self.evidence.append(text)


class Sign:
    """One expression. `holds` evaluates it; with `access` a node counts only where this process may open it."""

    def holds(self, machine: Machine, findings: Findings, *, access: bool = False) -> bool:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PciSign(Sign):
    """A PCI device of this vendor, of one of these classes (hex prefixes), with an id in one of these ranges."""

    vendor: int
    classes: tuple[str, ...] = ()
    devices: tuple[tuple[int, int], ...] = ()
    render_node: bool = False

    def holds(self, machine: Machine, findings: Findings, *, access: bool = False) -> bool:
        matches = [d for d in machine.pci(self.vendor) if self._fits(d, machine)]
        if self.render_node:
            matches = [d for d in matches if self._has_render_node(d, machine, findings, access)]
        for device in matches:
            findings.addresses.add(device.address)
            findings.note(f"PCI device {device.address} [{device.vendor:04x}:{machine.device_id(device):04x}]")
        return bool(matches)

    def _fits(self, device: PciDevice, machine: Machine) -> bool:
        if self.classes and not f"{device.class_id:06x}".startswith(self.classes):
            return False
        return not self.devices or any(low <= machine.device_id(device) <= high for low, high in self.devices)

    def _has_render_node(self, device: PciDevice, machine: Machine, findings: Findings, access: bool) -> bool:
        return any(_node_counts(path, machine, findings, access) for path in machine.render_nodes(device))


@dataclass(frozen=True, slots=True)
class NodeSign(Sign):
    """A device node, by glob."""

    pattern: str

    def holds(self, machine: Machine, findings: Findings, *, access: bool = False) -> bool:
        usable = [p for p in machine.find(self.pattern) if _node_counts(p, machine, findings, access)]
        for path in usable:
            findings.note(f"device node {path}")
        return bool(usable)


@dataclass(frozen=True, slots=True)
class FileSign(Sign):
    """A file, by glob."""

    pattern: str

    def holds(self, machine: Machine, findings: Findings, *, access: bool = False) -> bool:
        paths = machine.find(self.pattern)
        for path in paths[:1]:
            findings.note(f"file {path}")
        return bool(paths)


@dataclass(frozen=True, slots=True)
class LibrarySign(Sign):
    """A shared library, by name or glob, in LD_LIBRARY_PATH or the usual folders. It is never loaded."""

    name: str

    def holds(self, machine: Machine, findings: Findings, *, access: bool = False) -> bool:
        listed = [part for part in machine.environ.get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]
        for folder in (*listed, *LIBRARY_FOLDERS):
            for path in machine.find(f"{folder.rstrip('/')}/{self.name}")[:1]:
                findings.note(f"library {path}")
                return True
        return False


@dataclass(frozen=True, slots=True)
class ModuleSign(Sign):
    """A kernel module that is loaded."""

    name: str

    def holds(self, machine: Machine, findings: Findings, *, access: bool = False) -> bool:
        found = bool(machine.find(f"/sys/module/{glob.escape(self.name)}"))
        if found:
            findings.note(f"kernel module {self.name}")
        return found


@dataclass(frozen=True, slots=True)
class GroupSign(Sign):
    """All of, or any of. Every member is evaluated, so that the evidence is whole; a failed `all` leaves none."""

    every: bool
    members: tuple[Sign, ...]

    def holds(self, machine: Machine, findings: Findings, *, access: bool = False) -> bool:
        mine = Findings(forbidden=findings.forbidden)
        results = [member.holds(machine, mine, access=access) for member in self.members]
        holds = all(results) if self.every else any(results)
        if holds:
            for text in mine.evidence:
                findings.note(text)
            findings.addresses |= mine.addresses
        return holds


def parse_sign(data: Any, where: str) -> Sign:
    """An expression from TOML data. Raises `ConfigError` naming the place."""
    if not isinstance(data, dict) or len(data) != 1:
        raise ConfigError(
            f"{where}: {data!r} is no hardware sign: expected a table with exactly one of pci, node, file, library,"
            " module, all, any"
        )
    kind, value = next(iter(data.items()))
    if kind in ("all", "any"):
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{where}: {kind!r} is {value!r}: expected a list with at least one sign")
        return GroupSign(kind == "all", tuple(parse_sign(item, f"{where}.{kind}") for item in value))
    if kind == "pci":
        return _parse_pci(value, f"{where}.pci")
    if kind not in _SIMPLE:
        raise ConfigError(f"{where}: unknown kind of sign {kind!r}: known are pci, all, any, {', '.join(_SIMPLE)}")
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: {kind!r} is {value!r}: expected a non-empty string")
    if kind in ("node", "file") and not value.startswith("/"):
        raise ConfigError(f"{where}: {kind!r} is {value!r}: expected an absolute path")
    if kind in ("library", "module") and "/" in value:
        raise ConfigError(f"{where}: {kind!r} is {value!r}: expected a name without a folder")
    return _SIMPLE[kind](value)


_SIMPLE: dict[str, type[NodeSign] | type[FileSign] | type[LibrarySign] | type[ModuleSign]] = {
    "node": NodeSign,
    "file": FileSign,
    "library": LibrarySign,
    "module": ModuleSign,
}


def _parse_pci(data: Any, where: str) -> Sign:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: is {data!r}: expected a table with vendor, class, device, render_node")
    table = Table(data, where)
    vendor = _hex(table.require("vendor", str), f"{where}: key 'vendor'", digits=(4,))
    classes = table.strings("class")
    for text in classes:
        _hex(text, f"{where}: key 'class'", digits=(2, 4, 6))
    devices = tuple(_range(text, f"{where}: key 'device'") for text in table.strings("device"))
    sign = PciSign(vendor, tuple(t[2:].lower() for t in classes), devices, table.get("render_node", bool, False))
    table.finish()
    return sign


def _range(text: str, where: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    first = _hex(low, where, digits=(4,))
    last = _hex(high, where, digits=(4,)) if dash else first
    if last < first:
        raise ConfigError(f"{where} has the range {text!r}, which ends before it begins")
    return first, last


def _hex(text: str, where: str, *, digits: tuple[int, ...]) -> int:
    body = text[2:]
    if not text.startswith("0x") or len(body) not in digits or any(c not in "0123456789abcdefABCDEF" for c in body):
        raise ConfigError(f"{where} is {text!r}: expected 0x and {' or '.join(map(str, digits))} hexadecimal digits")
    return int(body, 16)


def _node_counts(path: str, machine: Machine, findings: Findings, access: bool) -> bool:
    if not os.path.exists(machine.path(path)):  # noqa: PTH110 - hot and a string
        return False
    if access and not machine.allowed(path):
        if path not in findings.forbidden:
            findings.forbidden.append(path)
        return False
    return True


def _read_id(path: str) -> int | None:
    """A sysfs id such as `0x10de`, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, 32), 16)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
