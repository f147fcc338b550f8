"""The survey: installed platforms and the hardware that is here, before anything is chosen.

Hardware is seen by the manifests' signs and by the table of well-known hardware, so a device without its plugin is
seen too. Claims on the same kind of device, or on the same PCI address, form one group: its members compete.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .hardware import KnownHardware, Presence, SeenHardware, known_hardware, probe
from .manifest import BrokenPlugin, Manifest, Manifests, read_manifests
from .signs import Machine

ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRequest:
    """What selection goes by.

    platform: a name, or None (or "auto") for the environment's TENON_PLATFORM and then what is there. root: where
    `/sys` and `/dev` lie. path: folders with distributions, `sys.path` by default.
    """

    platform: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = ROOT
    path: Sequence[str] | None = None


@dataclass(slots=True, kw_only=True)
class HardwareGroup:
    """Hardware that is not absent, and who claims it.

    seen: from the table and from claims, never empty. claimants: installed platforms, healthy or not. known: the
    table's rows.
    """

    kinds: set[str]
    seen: list[SeenHardware] = field(default_factory=list)
    claimants: list[Manifest | BrokenPlugin] = field(default_factory=list)
    known: list[KnownHardware] = field(default_factory=list)
    presence: Presence = Presence.ABSENT

    @property
    def healthy(self) -> list[Manifest]:
        """Claimants that this contract can run, highest priority first."""
        fit = [item for item in self.claimants if isinstance(item, Manifest) and item.accepts_contract()]
        return sorted(fit, key=lambda item: (-item.priority, item.name))

    @property
    def title(self) -> str:
        """What to call the hardware: the table's words where it is known."""
        return self.known[0].title if self.known else self.seen[0].title

    @property
    def platform(self) -> str:
        """The name to pass to `--platform`."""
        healthy = self.healthy
        return healthy[0].name if healthy else self.known[0].platform if self.known else self.claimants[0].name

    def line(self) -> str:
        """What was seen, in one line."""
        seen = next(item for item in self.seen if item.presence is self.presence)
        return replace(seen, title=self.title).line()


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Platforms, the presence of each one's own hardware by name, and the groups of hardware that is here."""

    manifests: Manifests
    presence: Mapping[str, SeenHardware]
    groups: tuple[HardwareGroup, ...]
    unserved: tuple[str, ...] = ()

    @property
    def hardware(self) -> tuple[SeenHardware, ...]:
        """All hardware that is not absent."""
        return tuple(item for group in self.groups for item in group.seen)


def survey(request: SelectionRequest) -> Survey:
    """Read manifests and look for hardware. Imports no plugin, creates no context."""
    manifests = read_manifests(request.path)
    machine = Machine(request.root, request.environ)
    presence = _probe_plugins(manifests, machine)
    kinds: dict[str, HardwareGroup] = {}
    for item in manifests.every:
        seen = presence.get(item.name)
        if seen is None or seen.presence is Presence.ABSENT or (isinstance(item, Manifest) and item.hidden):
            continue
        group = kinds.setdefault(seen.device_kind, HardwareGroup(kinds={seen.device_kind}))
        group.seen.append(seen)
        group.claimants.append(item)
    unserved = _add_known(kinds, manifests, machine)
    groups = _merge_by_address(list(kinds.values()))
    for group in groups:
        group.presence = _presence(group, presence)
    groups.sort(key=lambda group: group.platform)
    return Survey(manifests=manifests, presence=presence, groups=tuple(groups), unserved=tuple(unserved))


def _probe_plugins(manifests: Manifests, machine: Machine) -> dict[str, SeenHardware]:
    found = {}
    for item in manifests.every:
        if item.hardware is not None:
            kind = item.device_kind or item.name
            found[item.name] = probe(
                item.hardware, machine, device_kind=kind, title=f"hardware of platform {item.name!r}"
            )
    return found


def _add_known(kinds: dict[str, HardwareGroup], manifests: Manifests, machine: Machine) -> list[str]:
    """Enter what the table sees; returns a line for hardware that its healthy plugin says it does not serve."""
    unserved = []
    for row in known_hardware():
        if row.signs is None:
            continue
        seen = probe(row.signs, machine, device_kind=row.device_kind, title=row.title)
        if seen.presence is Presence.ABSENT:
            continue
        group = kinds.get(row.device_kind)
        if group is None:
            mine = _plugins_of(row, manifests)
            healthy = [item for item in mine if isinstance(item, Manifest) and item.accepts_contract()]
            if healthy:
                first = healthy[0]
                unserved.append(f"{seen.line()} is not among what platform {first.name!r} ({first.owner}) serves")
                continue
            group = kinds[row.device_kind] = HardwareGroup(kinds={row.device_kind}, claimants=mine)
        else:
            group.claimants += [item for item in _plugins_of(row, manifests) if item not in group.claimants]
        group.seen.append(seen)
        group.known.append(row)
    return unserved


def _plugins_of(row: KnownHardware, manifests: Manifests) -> list[Manifest | BrokenPlugin]:
    """Installed platforms for a row, whatever their own signs say; a healthy one's signs are its word, so only where
    nobody healthy claims is it asked for."""
    valid = [m for m in manifests.valid if m.device_kind == row.device_kind and not (m.hidden or m.fallback)]
    broken = [b for b in manifests.broken if row.device_kind in (b.device_kind, b.name) or b.name == row.platform]
    return [*valid, *broken]


def _merge_by_address(groups: list[HardwareGroup]) -> list[HardwareGroup]:
    """Join groups that share a PCI address: two kinds that both claim one device."""
    merged: list[HardwareGroup] = []
    for group in groups:
        addresses = {a for seen in group.seen for a in seen.addresses}
        for other in [m for m in merged if addresses & {a for seen in m.seen for a in seen.addresses}]:
            merged.remove(other)
            group.kinds |= other.kinds
            group.seen = other.seen + group.seen
            group.claimants = other.claimants + group.claimants
            group.known = other.known + group.known
            addresses |= {a for seen in other.seen for a in seen.addresses}
        merged.append(group)
    return merged


def _presence(group: HardwareGroup, own: Mapping[str, SeenHardware]) -> Presence:
    """Hidden where any voice says so; else the word of healthy claimants; else anyone's, the best one."""
    if any(item.presence is Presence.HIDDEN for item in group.seen):
        return Presence.HIDDEN
    words = [own[item.name] for item in group.healthy if item.name in own] or group.seen
    return Presence.USABLE if any(w.presence is Presence.USABLE for w in words) else Presence.INACCESSIBLE
