"""Reports: every installed platform in exactly one state, with the reason. What `tenon plugins` and `doctor` show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .contract_fit import incompatibility
from .hardware import Presence, SeenHardware
from .manifest import REFERENCE, BrokenPlugin, Manifest
from .survey import Survey


class PluginState(str, Enum):
    """The one state a plugin is in."""

    ABSENT_HARDWARE = "absent hardware"
    NOT_SELECTED = "not selected"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"
    SELECTED = "selected"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """One installed platform: who brought it, its state, and why."""

    name: str
    distribution: str
    version: str
    contract: str
    device_kind: str
    state: PluginState
    reason: str

    def line(self) -> str:
        """One line for people."""
        return f"{self.name} ({self.distribution} {self.version}): {self.state}: {self.reason}"


def reports(
    found: Survey, chosen: Manifest | None = None, because: str = "nothing was selected"
) -> tuple[PluginReport, ...]:
    """Every installed platform in its one state. because: why healthy others were not selected."""
    return tuple(_report(item, found, chosen, because) for item in found.manifests.every)


def _report(item: Manifest | BrokenPlugin, found: Survey, chosen: Manifest | None, because: str) -> PluginReport:
    state, reason = _judge(item, found, chosen, because)
    return PluginReport(
        name=item.name,
        distribution=item.distribution,
        version=item.version,
        contract=item.contract if isinstance(item, Manifest) else "",
        device_kind=item.device_kind,
        state=state,
        reason=reason,
    )


def _judge(
    item: Manifest | BrokenPlugin, found: Survey, chosen: Manifest | None, because: str
) -> tuple[PluginState, str]:
    if isinstance(item, BrokenPlugin):
        return PluginState.BROKEN, item.reason
    if not item.accepts_contract():
        return PluginState.INCOMPATIBLE, incompatibility(item)
    if chosen is not None and item.name == chosen.name:
        return PluginState.SELECTED, "it is used"
    seen = found.presence.get(item.name)
    if seen is not None and seen.presence is not Presence.USABLE:
        return PluginState.ABSENT_HARDWARE, why_unusable(seen)
    if item.hidden and item.name != REFERENCE:
        return PluginState.NOT_SELECTED, "it is only selected by name"
    return PluginState.NOT_SELECTED, because


def why_unusable(seen: SeenHardware) -> str:
    if seen.presence is Presence.ABSENT:
        return "none of its hardware was seen"
    return f"seen, but not to be used: {seen.line()}"
