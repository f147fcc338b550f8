"""Adjustments: what a platform changes about the operator's configuration, as data, and the ledger that applies them.

A platform never touches the configuration. It returns `Adjustment`s; core applies them through the `Ledger`, prints
"requested -> effective, who, why", and under `--strict` refuses those that change meaning. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import ConfigError, PluginError

Severity = Literal["performance", "semantic"]
_SEVERITIES = ("performance", "semantic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """One changed field of the flat configuration.

    requested, effective: the value before and after. severity: "performance" (the same answers, another speed) or
    "semantic" (answers or features change). who: the platform or component that asks for it.
    """

    field: str
    requested: Any
    effective: Any
    reason: str
    severity: Severity
    who: str

    def __post_init__(self) -> None:
        if self.severity not in _SEVERITIES:
            raise PluginError(
                f"adjustment of {self.field!r} by {self.who!r} has severity {self.severity!r}: expected one of"
                f" {', '.join(_SEVERITIES)}"
            )
        for name in ("field", "reason", "who"):
            if not getattr(self, name):
                raise PluginError(f"adjustment of {self.field!r} by {self.who!r} has no {name}: every one says why")

    def line(self) -> str:
        """The ledger's line: `max_num_seqs: 512 -> 256 (who, performance): reason`."""
        return f"{self.field}: {self.requested!r} -> {self.effective!r} ({self.who}, {self.severity}): {self.reason}"


@dataclass(slots=True, kw_only=True)
class Ledger:
    """All adjustments of one start-up, in the order they were applied.

    strict: refuse semantic ones. entries: filled by `add` and `apply`.
    """

    strict: bool = False
    entries: list[Adjustment] = field(default_factory=list)

    def add(self, item: Adjustment) -> None:
        """Enter one adjustment. Raises `ConfigError` where it changes meaning and the ledger is strict."""
        self._refuse_semantic([item])
        self.entries.append(item)

    def apply(self, config: Mapping[str, Any], adjustments: Iterable[Adjustment]) -> dict[str, Any]:
        """The configuration after the adjustments; all or none are entered, and `config` is left as it is.

        Raises `PluginError` for an unknown field or for two that want different values, `ConfigError` under strict.
        """
        effective = dict(config)
        applied: list[Adjustment] = []
        for item in adjustments:
            self._check(item, effective, applied)
            if effective[item.field] != item.effective:
                effective[item.field] = item.effective
                applied.append(item)
        self._refuse_semantic(applied)
        self.entries.extend(applied)
        return effective

    def _refuse_semantic(self, items: list[Adjustment]) -> None:
        refused = [item for item in items if item.severity == "semantic"] if self.strict else []
        if refused:
            lines = "\n".join(f"  {item.line()}" for item in refused)
            raise ConfigError(
                f"--strict refuses {len(refused)} adjustment(s) that change meaning:\n{lines}",
                remedy="ask for the effective values yourself, choose another platform, or run without --strict",
            )

    def _check(self, item: Adjustment, effective: Mapping[str, Any], applied: list[Adjustment]) -> None:
        if item.field not in effective:
            raise PluginError(f"{item.who!r} adjusts {item.field!r}, which is no field of the configuration")
        current = effective[item.field]
        if current in (item.requested, item.effective):
            return
        earlier = next((e for e in reversed([*self.entries, *applied]) if e.field == item.field), None)
        if earlier is not None:
            raise PluginError(
                f"two adjustments disagree on {item.field!r}: {earlier.who!r} set {earlier.effective!r}"
                f" ({earlier.reason}), {item.who!r} wants {item.effective!r} ({item.reason})",
                remedy=f"set {item.field} yourself to a value that both accept",
            )
        raise PluginError(
            f"{item.who!r} adjusts {item.field!r} from {item.requested!r}, but it is {current!r}: the adjustment was"
            " computed from another configuration"
        )

    def lines(self) -> list[str]:
        """The table to print, one aligned line per entry: field, requested -> effective, who, why."""
        if not self.entries:
            return []
        rows = [
            (e.field, f"{e.requested!r} -> {e.effective!r}", f"{e.who} [{e.severity}]", e.reason) for e in self.entries
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return ["  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]) for row in rows]
