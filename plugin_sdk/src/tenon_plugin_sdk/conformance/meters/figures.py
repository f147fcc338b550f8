"""Figures that a run leaves behind, and their comparison with an earlier run's by ratio.

Units say which way is better: seconds ("s") less, rates ("1/s", "B/s", "flop/s") more; a share of the roofline ("of
roofline") is told and not compared, since its two sides are compared already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenon_platforms.errors import ConfigError

LESS_IS_BETTER = ("s",)
MORE_IS_BETTER = ("1/s", "B/s", "flop/s")
SHARE = "of roofline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier report. ratio: how many times worse a figure may be."""

    path: str
    machine: dict[str, Any]
    profile: str
    figures: dict[str, Any]
    ratio: float


def figure(value: float, unit: str) -> dict[str, Any]:
    """One figure as plain data."""
    return {"value": float(f"{value:.6g}"), "unit": unit}


def read_baseline(path: Path, ratio: float) -> Baseline:
    """A report that `--report` wrote. Raises `ConfigError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Baseline(
            path=str(path), machine=data["machine"], profile=data["profile"], figures=data["measured"], ratio=ratio
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--baseline {path}: no report of the conformance kit: {error!r}") from error


def same_machine(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """What differs between two machines' fingerprints, versions aside; None where they compare."""
    for name in ("system", "machine", "processors", "device"):
        if ours.get(name) != theirs.get(name):
            return f"{name} is {ours.get(name)}, there it was {theirs.get(name)}"
    return None


def regressions(figures: Mapping[str, Any], baseline: Baseline) -> list[str]:
    """Every figure that got worse by more than the ratio, the worst first."""
    found: list[tuple[float, str]] = []
    for name, now in figures.items():
        before = baseline.figures.get(name)
        if before is None or before["unit"] != now["unit"] or not before["value"] or not now["value"]:
            continue
        if now["unit"] in LESS_IS_BETTER:
            worse = now["value"] / before["value"]
        elif now["unit"] in MORE_IS_BETTER:
            worse = before["value"] / now["value"]
        else:
            continue
        if worse > baseline.ratio:
            line = f"{name}: {now['value']:.4g} {now['unit']}, was {before['value']:.4g}: {worse:.2f} times worse"
            found.append((worse, line))
    return [line for _, line in sorted(found, reverse=True)]
