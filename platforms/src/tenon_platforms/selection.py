"""Selection: one platform for this process, or an error that says what was seen and how to mend it.

A name given by `--platform` or TENON_PLATFORM wins. Otherwise the accelerator that is there; with none, the platform
for the host's processor, or the reference with a loud warning. It fails closed: hardware that is here and whose plugin
is missing, incompatible or broken ends in an error, never in a quiet run on something else. Hardware that the bus shows
but this process cannot reach is an error where a plugin for it is installed, and a warning where none is. Hidden
platforms are only ever chosen by name. Imports no plugin and no torch: that is
`handshake.load_selected`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from .contract_fit import incompatibility, incompatibility_remedy
from .errors import ConfigError, PluginError
from .hardware import Presence, SeenHardware, known_hardware
from .manifest import REFERENCE, BrokenPlugin, Manifest
from .mending import mending
from .plugin_report import PluginReport, PluginState, reports, why_unusable
from .survey import HardwareGroup, SelectionRequest, Survey, survey
from .version import contract_version_text

__all__ = [
    "PluginReport",
    "PluginState",
    "Selection",
    "SelectionError",
    "SelectionRequest",
    "reports",
    "select",
    "survey",
]

PLATFORM_ENV = "TENON_PLATFORM"
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The choice, frozen, and everything it went by; `to_dict` is what workers get.

    how: "named" or "hardware" or "fallback". escape: the platform an error may offer instead. contract: our version.
    """

    manifest: Manifest
    how: str
    escape: str
    contract: str
    plugins: tuple[PluginReport, ...]
    hardware: tuple[SeenHardware, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def platform(self) -> str:
        """The chosen platform's name."""
        return self.manifest.name

    def failed(self, state: str, reason: str) -> Selection:
        """The same with the chosen plugin's state as it turned out on loading."""
        plugins = tuple(
            replace(item, state=PluginState(state), reason=reason) if item.name == self.platform else item
            for item in self.plugins
        )
        return replace(self, plugins=plugins)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: strings, numbers, lists and dicts only."""
        return {
            "manifest": self.manifest.to_dict(),
            "how": self.how,
            "escape": self.escape,
            "contract": self.contract,
            "plugins": [{**asdict(item), "state": item.state.value} for item in self.plugins],
            "hardware": [_plain_hardware(item) for item in self.hardware],
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Selection:
        """The inverse of `to_dict`; the manifest comes back without hardware signs."""
        return cls(
            manifest=Manifest.from_dict(data["manifest"]),
            how=data["how"],
            escape=data["escape"],
            contract=data["contract"],
            plugins=tuple(PluginReport(**{**p, "state": PluginState(p["state"])}) for p in data["plugins"]),
            hardware=tuple(_hardware_from(item) for item in data["hardware"]),
            warnings=tuple(data["warnings"]),
            notes=tuple(data["notes"]),
        )


def _plain_hardware(item: SeenHardware) -> dict[str, Any]:
    plain = {**asdict(item), "presence": item.presence.value}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def _hardware_from(plain: dict[str, Any]) -> SeenHardware:
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in plain.items()}
    fields["presence"] = Presence(plain["presence"])
    return SeenHardware(**fields)


class SelectionError(PluginError):
    """No platform could be selected. plugins and hardware: what there was, for `tenon doctor`."""

    def __init__(self, message: str, *, remedy: str | None, found: Survey) -> None:
        super().__init__(message, remedy=remedy)
        self.plugins = reports(found)
        self.hardware = found.hardware


def select(request: SelectionRequest | None = None) -> Selection:
    """Choose the platform. Raises `SelectionError` (a `PluginError`), or `ConfigError` for a name that nobody knows."""
    request = request or SelectionRequest()
    found = survey(request)
    name, source = _asked_for(request)
    if name is not None:
        return _named(found, name, source)
    usable = [group for group in found.groups if group.presence is Presence.USABLE]
    if len(usable) > 1:
        _two_kinds(found, usable)
    if usable:
        return _accelerator(found, usable[0])
    return _host(found)


def _asked_for(request: SelectionRequest) -> tuple[str | None, str]:
    if request.platform is not None and request.platform != AUTO:
        return request.platform, "--platform"
    if request.platform is None:
        name = request.environ.get(PLATFORM_ENV, "").strip()
        if name and name != AUTO:
            return name, PLATFORM_ENV
    return None, ""


# The three ways to a platform: by name, by hardware, by there being none.


def _named(found: Survey, name: str, source: str) -> Selection:
    item = found.manifests.named(name)
    asked = f"platform {name!r}, asked for by {source},"
    if item is None:
        _not_installed(found, name, asked)
    if isinstance(item, BrokenPlugin) or not item.accepts_contract():
        raise SelectionError(f"{asked} {_sick(item)}", remedy=_mend(found, [item], besides=name), found=found)
    seen = found.presence.get(name)
    if seen is not None and seen.presence is not Presence.USABLE:
        raise SelectionError(
            f"{asked} ({item.owner}, contract {item.contract}) cannot run here: {why_unusable(seen)}",
            remedy=_or_escape(seen.remedy or "use a machine that has it", found, besides=name),
            found=found,
        )
    others = [group for group in found.groups if group.presence is Presence.USABLE and item not in group.claimants]
    notes = tuple(f"not used, since {source} says {name}: {group.line()}" for group in others)
    return _selection(found, item, how="named", because=f"another was asked for by {source}: {name}", notes=notes)


def _accelerator(found: Survey, group: HardwareGroup) -> Selection:
    healthy = group.healthy
    if not healthy:
        _fail_closed(found, group)
    best = [item for item in healthy if item.priority == healthy[0].priority]
    if len(best) > 1:
        listed = " and ".join(f"{item.name!r} ({item.owner})" for item in best)
        raise SelectionError(
            f"{len(best)} platforms with equal priority {best[0].priority} claim the same hardware: {listed}\n"
            f"  seen: {group.line()}",
            remedy=f"choose one: {' or '.join(f'--platform {item.name}' for item in best)}",
            found=found,
        )
    sick = [item for item in group.claimants if item not in healthy]
    warnings = [f"platform {item.name!r} {_sick(item)}" for item in sick]
    others = [other for other in found.groups if other.presence is Presence.INACCESSIBLE]
    warnings += [f"{other.line()} cannot be used by this process. To use it: {_remedy_of(other)}" for other in others]
    return _selection(
        found, best[0], how="hardware", because=f"{best[0].name!r} has a higher priority", warnings=warnings
    )


def _host(found: Survey) -> Selection:
    """No usable accelerator: the host's processor."""
    warnings = []
    for group in found.groups:
        if group.presence is Presence.INACCESSIBLE:
            if group.claimants:
                _inaccessible(found, group)
            warnings.append(f"{group.line()} cannot be used by this process. To use it: {_remedy_of(group)}")
    notes = [group.line() for group in found.groups if group.presence is Presence.HIDDEN]
    notes += list(found.unserved)
    fallbacks = _fallbacks(found)
    sick = [item for item in found.manifests.every if _is_fallback(item) and not _is_healthy(item)]
    if not fallbacks and sick:
        lines = "; ".join(f"platform {item.name!r} {_sick(item)}" for item in sick)
        raise SelectionError(
            f"no accelerator is here, and the platform for the host's processor cannot run: {lines}",
            remedy=_mend(found, sick),
            found=found,
        )
    warnings += [f"platform {item.name!r} {_sick(item)}" for item in _unjudged(found, sick)]
    if not fallbacks:
        extra = next(row.extra for row in known_hardware() if row.signs is None)
        warnings.append(
            "no accelerator was found and no platform for the host's processor is installed: running on the REFERENCE"
            f" platform, which is correct but slow. For speed: pip install tenon-core[{extra}]"
        )
        reference = next(item for item in found.manifests.valid if item.name == REFERENCE)
        return _selection(found, reference, how="fallback", because="", warnings=warnings, notes=notes)
    best = [item for item in fallbacks if item.priority == fallbacks[0].priority]
    if len(best) > 1:
        listed = " and ".join(f"{item.name!r} ({item.owner})" for item in best)
        raise SelectionError(
            f"{len(best)} platforms with equal priority {best[0].priority} run on the host's processor: {listed}",
            remedy=f"choose one: {' or '.join(f'--platform {item.name}' for item in best)}",
            found=found,
        )
    return _selection(found, best[0], how="fallback", because="it has a lower priority", warnings=warnings, notes=notes)


# Errors.


def _not_installed(found: Survey, name: str, asked: str) -> NoReturn:
    row = next((row for row in known_hardware() if row.platform == name), None)
    if row is not None:
        raise SelectionError(
            f"{asked} is not installed\n  seen: {_seen_text(found)}",
            remedy=_or_escape(f"pip install tenon-core[{row.extra}]", found, besides=name),
            found=found,
        )
    installed = sorted(item.name for item in found.manifests.every)
    available = sorted({row.platform for row in known_hardware()} - set(installed))
    close = difflib.get_close_matches(name, [*installed, *available], n=1)
    raise ConfigError(
        f"{asked} is not known: installed are {', '.join(installed)}; to be had are {', '.join(available) or '(none)'}",
        remedy=f"did you mean --platform {close[0]}?" if close else "install the package that brings it",
    )


def _two_kinds(found: Survey, groups: list[HardwareGroup]) -> NoReturn:
    lines = "\n".join(
        f"  {group.line()}: " + ("platform " + repr(group.platform) if group.healthy else _state_of(group))
        for group in groups
    )
    flags = " or ".join(f"--platform {group.platform}" for group in groups)
    raise SelectionError(
        f"{len(groups)} kinds of accelerator are here, and nothing says which to use:\n{lines}",
        remedy=f"choose one: {flags} (or set {PLATFORM_ENV})",
        found=found,
    )


def _fail_closed(found: Survey, group: HardwareGroup) -> NoReturn:
    raise SelectionError(
        f"{group.title} is here, but its platform cannot run\n  seen: {group.line()}\n  plugin: {_state_of(group)}\n"
        f"  contract: {contract_version_text()}",
        remedy=_mend(found, group.claimants, group=group),
        found=found,
    )


def _inaccessible(found: Survey, group: HardwareGroup) -> NoReturn:
    owners = ", ".join(f"{item.name!r} ({item.owner})" for item in group.claimants)
    raise SelectionError(
        f"{group.title} is in this machine and platform {owners} is installed for it, but this process cannot use it\n"
        f"  seen: {group.line()}",
        remedy=_or_escape(_remedy_of(group), found),
        found=found,
    )


# Words.


def _sick(item: Manifest | BrokenPlugin) -> str:
    if isinstance(item, BrokenPlugin):
        return f"({item.owner}) is broken: {item.reason}"
    return f"({item.owner}) is incompatible: {incompatibility(item)}"


def _state_of(group: HardwareGroup) -> str:
    if group.claimants:
        return "; ".join(f"platform {item.name!r} {_sick(item)}" for item in group.claimants)
    return f"none is installed; platform {group.platform!r} serves it"


def _seen_text(found: Survey) -> str:
    return "; ".join(group.line() for group in found.groups) or "no accelerator"


def _remedy_of(group: HardwareGroup) -> str:
    known = [s.remedy for s in group.seen if s.presence is group.presence and s.remedy]
    return known[0] if known else "give this process its device nodes"


def _mend(
    found: Survey,
    items: Iterable[Manifest | BrokenPlugin],
    *,
    group: HardwareGroup | None = None,
    besides: str = "",
) -> str:
    """The command that mends the first sick plugin, or installs the missing one, and the way round."""
    first = next(iter(items), None)
    if isinstance(first, Manifest):
        command = incompatibility_remedy(first)
    elif first is not None:
        command = f"{mending(first.distribution, first.path)}, or uninstall it"
    else:
        assert group is not None and group.known
        command = f"pip install tenon-core[{group.known[0].extra}]"
    return _or_escape(command, found, besides=besides)


def _or_escape(command: str, found: Survey, *, besides: str = "") -> str:
    escape = _escape(found)
    return command if escape == besides else f"{command}, or run on the host's processor: --platform {escape}"


def _escape(found: Survey) -> str:
    fallbacks = _fallbacks(found)
    return fallbacks[0].name if fallbacks else REFERENCE


# Which platforms.


def _is_healthy(item: Manifest | BrokenPlugin) -> bool:
    return isinstance(item, Manifest) and item.accepts_contract()


def _is_fallback(item: Manifest | BrokenPlugin) -> bool:
    """Whether it runs on the host's processor and may be chosen without being named."""
    if isinstance(item, Manifest):
        return item.fallback and not item.hidden
    return item.fallback or any(row.platform == item.name and row.signs is None for row in known_hardware())


def _fallbacks(found: Survey) -> list[Manifest]:
    fit = [item for item in found.manifests.valid if _is_fallback(item) and _is_healthy(item)]
    return sorted(fit, key=lambda item: (-item.priority, item.name))


def _unjudged(found: Survey, sick: list[Manifest | BrokenPlugin]) -> list[Manifest | BrokenPlugin]:
    """Plugins to warn of: sick fallbacks, and broken ones whose hardware cannot be told."""
    untold = [item for item in found.manifests.broken if item.hardware is None and item not in sick]
    return [*sick, *untold]


def _selection(
    found: Survey,
    chosen: Manifest,
    *,
    how: str,
    because: str,
    warnings: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Selection:
    return Selection(
        manifest=chosen,
        how=how,
        escape=_escape(found),
        contract=contract_version_text(),
        plugins=reports(found, chosen, because or f"{chosen.name!r} is used"),
        hardware=found.hardware,
        warnings=tuple(warnings),
        notes=tuple(notes),
    )
