"""Results of a run as plain data: one entry a check and case, counts a level, and on which machine it was."""

from __future__ import annotations

import json
import os
import platform as host
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon_platforms.conformance_record import ConformanceRecord, driver_text, write_record

from ..registry import LEVELS

if TYPE_CHECKING:
    from tenon_platforms.manifest import Manifest

    from ..exceptions import Excused
    from ..part import Part
    from ..registry import Case, Check
    from ..subject import Subject

FORMAT = 1
OUTCOMES = ("passed", "failed", "excused", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One check on one case. text: the failure, the excuse, or why it was skipped."""

    level: str
    check: str
    what: str
    case: str
    address: str
    outcome: str
    seconds: float
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Results:
    """A run. seeds: how many it drew with. measured: figures of L7. machine, seconds, served: filled by `finish`.

    whole: no check of its levels was left out. part: which part of a run it is, None: no `--part`. missing: what a
    report that was joined of others lacks. served: the kernels that ran and are the platform's own.
    silent: its offers that served nothing they were asked for, with a reason.
    """

    platform: str
    profile: str
    options: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    seeds: int = 1
    first_seed: int = 0
    whole: bool = True
    part: Part | None = None
    missing: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    silent: dict[str, str] = field(default_factory=dict)

    def add(self, check: Check, case: Case, report: Any, excuse: Callable[[str], Excused | None]) -> None:
        """One finished test."""
        address = check.address(case)
        outcome, text = _outcome(report)
        excused = excuse(address)
        if outcome == "excused" and excused is not None:
            text = f"{excused.reason} ({excused.link}, until {excused.expires})"
        self.entries.append(
            Entry(
                level=check.level,
                check=check.name,
                what=check.what,
                case=case.id,
                address=address,
                outcome=outcome,
                seconds=report.duration,
                text=text,
            )
        )

    def finish(self, subject: Subject, *, seconds: float) -> None:
        """The run is over."""
        self.seconds = seconds
        self.machine = fingerprint(subject)
        self.measured = dict(subject.measured)
        self.served, self.silent = subject.own_kernels()

    def num_checks(self) -> int:
        """How many checks came to something. One that fails at its end, too, has two entries."""
        return len({entry.address for entry in self.entries})

    def of(self, level: str) -> list[Entry]:
        """A level's entries."""
        return [entry for entry in self.entries if entry.level == level]

    def counts(self, level: str) -> dict[str, int]:
        """How many came to what."""
        return {name: sum(entry.outcome == name for entry in self.of(level)) for name in OUTCOMES}

    def highest(self) -> str | None:
        """The highest level up to which nothing failed, of those that ran whole from L0 on without a gap."""
        reached = None
        if not self.whole:
            return None
        for level in LEVELS:
            counts = self.counts(level)
            if not sum(counts.values()) or counts["failed"]:
                break
            reached = level
        return reached


def _outcome(report: Any) -> tuple[str, str]:
    if hasattr(report, "wasxfail"):
        return (
            ("excused", "") if report.outcome == "skipped" else ("failed", "an exception that is not needed: remove it")
        )
    if report.outcome == "skipped":
        return "skipped", _reason(report.longrepr)
    if report.outcome == "passed":
        return "passed", ""
    if str(report.longrepr).startswith("[XPASS(strict)]"):
        return "failed", "it passes: remove the exception from conformance.yaml"
    return "failed", _message(report)


def _reason(longrepr: Any) -> str:
    return str(longrepr[2]).removeprefix("Skipped: ") if isinstance(longrepr, tuple) else str(longrepr)


def _message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    return text.removeprefix("tenon_plugin_sdk.conformance.registry.ConformanceError: ")


def fingerprint(subject: Subject) -> dict[str, Any]:
    """Machine, device and versions: results of two runs compare where these are equal."""
    from importlib_metadata import PackageNotFoundError, version

    from tenon_platforms.version import contract_version_text

    versions: dict[str, str] = {"python": sys.version.split()[0], "contract": contract_version_text()}
    names = ["torch", "numpy", "tenon-core", "tenon-platforms", "tenon-plugin-sdk"]
    if subject.manifest is not None:
        names.append(subject.manifest.distribution)
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    found: dict[str, Any] = {"system": host.system(), "machine": host.machine(), "processors": os.cpu_count()}
    found["versions"] = versions
    if subject.error is None:
        info = subject.device.info
        found["driver"] = driver_text(info.driver)
        found["device"] = {"name": info.name, "arch": info.arch, "memory": info.memory}
    return found


def keep(results: Results, manifest: Manifest | None) -> str | None:
    """Keep a whole run that began with L0 for `tenon doctor`; where it was written, None where it was not."""
    if not results.whole or not results.of("L0") or manifest is None or "driver" not in results.machine:
        return None
    versions = results.machine["versions"]
    record = ConformanceRecord(
        core=versions.get("tenon-core", ""),
        plugin=manifest.version,
        driver=results.machine["driver"],
        highest=results.highest(),
        profile=results.profile,
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        options=results.options,
        counts={level: results.counts(level) for level in LEVELS if results.of(level)},
    )
    file = write_record(results.platform, record)
    return None if file is None else str(file)


def to_json(results: Results) -> str:
    """The file that `--report` writes."""
    data = {
        "format": FORMAT,
        "platform": results.platform,
        "profile": results.profile,
        "seeds": results.seeds,
        "first_seed": results.first_seed,
        "whole": results.whole,
        "part": None if results.part is None else asdict(results.part),
        "missing": list(results.missing),
        "options": results.options,
        "highest_level": results.highest(),
        "seconds": round(results.seconds, 3),
        "machine": results.machine,
        "levels": {level: results.counts(level) for level in LEVELS if results.of(level)},
        "measured": results.measured,
        "kernels": {"served": list(results.served), "silent": results.silent},
        "checks": [asdict(entry) for entry in results.entries],
    }
    return json.dumps(data, indent=1, default=str) + "\n"


def write_report(path: Path, text: str) -> None:
    """A file of results, its folder with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def slowest(entries: Iterable[Entry], count: int = 5) -> list[Entry]:
    """The entries that took longest."""
    return sorted(entries, key=lambda entry: -entry.seconds)[:count]
