"""What hardware is here: the signs of manifests and of a table of well-known hardware, evaluated on this machine.

Four answers for a device family: absent; hidden (the operator emptied its visibility variable); inaccessible (the bus
shows it, but this process has no device node for it, as in a container); usable. Costs some file reads, creates no
context, imports nothing of a vendor's. Device names are data, in `known_hardware.toml`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from .errors import ConfigError
from .signs import Findings, Machine, Sign, parse_sign
from .toml_table import Table, load_toml

KNOWN_HARDWARE_FILE = Path(__file__).with_name("known_hardware.toml")


class Presence(str, Enum):
    """How a device family is here."""

    ABSENT = "absent"
    HIDDEN = "hidden"
    INACCESSIBLE = "inaccessible"
    USABLE = "usable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Environment variables that say which devices a process may use.

    A variable that is set and empty, or whose first entry is in `none`, means: no device.
    """

    variables: tuple[str, ...] = ()
    none: tuple[str, ...] = ()

    def hidden_by(self, environ: Mapping[str, str]) -> str | None:
        """`NAME='value'` of the variable that hides all devices, or None."""
        for name in self.variables:
            value = environ.get(name)
            if value is None:
                continue
            first = value.split(",")[0].strip()
            if not first or first in self.none:
                return f"{name}={value!r}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSigns:
    """present: it is in this machine. usable: this process can reach it (default: where it is present).

    inaccessible: what to do where it is present and not usable.
    """

    present: Sign
    usable: Sign | None = None
    inaccessible: str = ""
    visibility: Visibility = Visibility()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHardware:
    """The answer for one device family, plain data. addresses: PCI addresses. remedy: where it is inaccessible."""

    device_kind: str
    title: str
    presence: Presence
    evidence: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    remedy: str = ""

    def line(self) -> str:
        """One line for people, such as `Vendor GPU (usable: PCI device 0000:01:00.0 [1234:5678])`."""
        more = f"; and {len(self.evidence) - 4} more" if len(self.evidence) > 4 else ""
        shown = "; ".join(self.evidence[:4]) + more
        return f"{self.title} ({self.presence}{': ' + shown if shown else ''})"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHardware:
    """A row of the table: what it is called, the platform that serves it, the pip extra that brings that platform.

    signs: None for a platform that needs no hardware of its own.
    """

    platform: str
    device_kind: str
    title: str
    extra: str
    signs: HardwareSigns | None = None


def probe(signs: HardwareSigns, machine: Machine, *, device_kind: str, title: str) -> SeenHardware:
    """Evaluate one family's signs."""
    findings = Findings()
    usable = (signs.usable or signs.present).holds(machine, findings, access=True)
    present = signs.present.holds(machine, findings) or usable  # always evaluated: it knows the PCI addresses
    presence = Presence.USABLE if usable else Presence.INACCESSIBLE if present else Presence.ABSENT
    evidence, remedy = list(findings.evidence), ""
    if presence is Presence.INACCESSIBLE:
        remedy = signs.inaccessible or "give this process its device nodes (container flags, driver, groups)"
        if findings.forbidden:
            evidence.append(f"no permission to open {', '.join(findings.forbidden)}")
            remedy = _permission_remedy(findings.forbidden, machine)
        else:
            evidence.append("no device node for it")
    hidden_by = signs.visibility.hidden_by(machine.environ)
    if hidden_by is not None and presence is not Presence.ABSENT:
        presence, remedy = Presence.HIDDEN, f"unset {hidden_by.partition('=')[0]} or list the devices to use in it"
        evidence.append(f"hidden by {hidden_by}")
    return SeenHardware(
        device_kind=device_kind,
        title=title,
        presence=presence,
        evidence=tuple(evidence),
        addresses=tuple(sorted(findings.addresses)),
        remedy=remedy,
    )


def _permission_remedy(paths: list[str], machine: Machine) -> str:
    first = paths[0]
    try:
        group = os.stat(machine.path(first)).st_gid  # noqa: PTH116 - a string below the root
    except OSError:
        return f"allow this user to open {first}"
    return f"add this user to the group that owns {first} (gid {group}), then log in again; in a container: --group-add"


@lru_cache(maxsize=4)
def known_hardware(path: Path = KNOWN_HARDWARE_FILE) -> tuple[KnownHardware, ...]:
    """The table shipped with the contract. Raises `ConfigError` where the file is not right."""
    top = Table(load_toml(path), path.name)
    rows = top.require("hardware", list)
    top.finish()
    known = tuple(_parse_known(row, f"{path.name} hardware[{index}]") for index, row in enumerate(rows))
    names = [row.platform for row in known]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path.name}: a platform is listed twice: {', '.join(sorted(names))}")
    return known


def _parse_known(row: object, where: str) -> KnownHardware:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: is {row!r}: expected a table")
    table = Table(row, where)
    platform = table.require("platform", str)
    known = KnownHardware(
        platform=platform,
        device_kind=table.get("device_kind", str, platform),
        title=table.require("title", str),
        extra=table.require("extra", str),
        signs=parse_hardware(table),
    )
    table.finish()
    return known


def parse_hardware(table: Table) -> HardwareSigns | None:
    """The keys `present`, `usable`, `inaccessible`, and the table `visibility`; None where there is no `present`."""
    present, usable = table.raw("present"), table.raw("usable")
    inaccessible = table.get("inaccessible", str, "")
    visibility = Visibility()
    inner = table.table("visibility")
    if inner is not None:
        visibility = Visibility(variables=inner.strings("variables"), none=inner.strings("none"))
        inner.finish()
        if not visibility.variables:
            raise ConfigError(f"{inner.where}: key 'variables' is missing: expected names of environment variables")
    if present is None:
        if usable is not None:
            raise ConfigError(f"{table.where}: key 'present' is missing: 'usable' alone does not say what is seen")
        return None
    return HardwareSigns(
        present=parse_sign(present, f"{table.where} present"),
        usable=None if usable is None else parse_sign(usable, f"{table.where} usable"),
        inaccessible=inaccessible,
        visibility=visibility,
    )
