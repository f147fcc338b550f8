"""The last conformance result of a platform on this machine: written by the kit, shown by `tenon doctor`. Torch-free.

A result speaks for exactly one (core, plugin, driver). One file a platform holds the last result of each:
`$XDG_CACHE_HOME/tenon/conformance/NAME.json`. A file that cannot be read or written is no result and stops nobody.
"""

from __future__ import annotations

import json
import os
import platform as host
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

FORMAT = 1
KEPT = 20  # results a platform


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceRecord:
    """core, plugin: versions; core is empty where it is not installed. driver: `driver_text`. when: ISO 8601, UTC.

    highest: the level up to which all passed, None: not even L0. counts: level -> outcome -> checks.
    """

    core: str
    plugin: str
    driver: str
    highest: str | None
    profile: str
    when: str
    options: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """What the result speaks for."""
        return self.core, self.plugin, self.driver


def driver_text(driver: str) -> str:
    """The device's driver as its platform names it (`DeviceInfo.driver`), or the system's kernel, a host's driver."""
    return driver or f"{host.system()} {host.release()}"


def record_file(name: str) -> Path:
    """Where a platform's results are."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tenon" / "conformance" / f"{name}.json"


def read_records(name: str) -> list[ConformanceRecord]:
    """A platform's results, the last first; none where there is no readable file."""
    known = {item.name for item in fields(ConformanceRecord)}
    try:
        data = json.loads(record_file(name).read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            return []
        return [ConformanceRecord(**{k: v for k, v in one.items() if k in known}) for one in data["results"]]
    except (OSError, ValueError, TypeError, KeyError, RuntimeError):
        return []


def write_record(name: str, record: ConformanceRecord) -> Path | None:
    """Keep a result in the place of an older one for the same three; None where it could not be written."""
    others = [one for one in read_records(name) if one.key != record.key]
    results = [asdict(one) for one in [record, *others][:KEPT]]
    try:
        file = record_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"format": FORMAT, "results": results}, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    except (OSError, RuntimeError):
        return None
    return file


def last_record(name: str, core: str, plugin: str, driver: str) -> tuple[ConformanceRecord | None, str]:
    """The result for exactly these three, and one line about it, or about why there is none."""
    found = read_records(name)
    for one in found:
        if one.key == (core, plugin, driver):
            failed = sum(counts.get("failed", 0) for counts in one.counts.values())
            excused = sum(counts.get("excused", 0) for counts in one.counts.values())
            level = "conforms to no level" if one.highest is None else f"conforms up to {one.highest}"
            return one, f"{level} ({one.profile} profile, {failed} failed, {excused} excused, {one.when})"
    command = f"pytest --pyargs tenon_plugin_sdk.conformance --platform {name}"
    if not found:
        return None, f"never run here: {command}"
    what = zip(("core", "plugin", "driver"), found[0].key, (core, plugin, driver), strict=True)
    differs = ", ".join(f"{which} {was} (now {now})" for which, was, now in what if was != now)
    return None, f"not run for these versions; the last result is of {differs}: {command}"
