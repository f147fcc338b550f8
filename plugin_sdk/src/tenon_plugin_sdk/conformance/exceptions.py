"""`conformance.yaml`: what a platform knows it fails, each with a reason, a link and the date it is excused until.

    exceptions:
      - check: "L2/attention/bfloat16-*"      # as reports address it; * and ? match
        reason: "the compiler loses a rounding, fixed in driver 4.2"
        link: "https://example.com/issues/17"
        expires: 2027-01-31

An exception that is not needed fails (strict), one whose date has passed fails, and so does one that matches nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from tenon_platforms.errors import ConfigError

FIELDS = ("check", "reason", "link", "expires")
LONGEST_DAYS = 366


@dataclass(frozen=True, slots=True, kw_only=True)
class Excused:
    """One exception."""

    check: str
    reason: str
    link: str
    expires: datetime.date

    def covers(self, address: str) -> bool:
        """Whether it speaks of this check."""
        return fnmatchcase(address, self.check)

    def expired_text(self, today: datetime.date) -> str | None:
        """What to say once the date has passed."""
        if today <= self.expires:
            return None
        return (
            f"the exception {self.check!r} expired on {self.expires}: mend the platform, or move the date with a new"
            f" reason (was: {self.reason}, {self.link})"
        )


def read_exceptions(path: Path | None) -> tuple[Excused, ...]:
    """The exceptions of a file; none where there is no file. Raises `ConfigError` that names the entry."""
    if path is None or not path.exists():
        return ()
    try:
        loaded: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if loaded is None:
        return ()
    if not isinstance(loaded, dict) or set(loaded) != {"exceptions"} or not isinstance(loaded["exceptions"], list):
        raise ConfigError(f"{path}: expected one key, `exceptions`, with a list")
    return tuple(_entry(path, place, entry) for place, entry in enumerate(loaded["exceptions"], 1))


def _entry(path: Path, place: int, entry: Any) -> Excused:
    where = f"{path}, exception {place}"
    if not isinstance(entry, dict) or set(entry) != set(FIELDS):
        raise ConfigError(f"{where}: has {sorted(entry) if isinstance(entry, dict) else entry!r}, expected {FIELDS}")
    for name in ("check", "reason", "link"):
        if not isinstance(entry[name], str) or not entry[name].strip():
            raise ConfigError(f"{where}: {name} is {entry[name]!r}, expected a text")
    if not entry["link"].startswith(("https://", "http://")):
        raise ConfigError(f"{where}: link is {entry['link']!r}, expected the address of an issue")
    if type(entry["expires"]) is not datetime.date:
        raise ConfigError(f"{where}: expires is {entry['expires']!r}, expected a date such as 2027-01-31")
    return Excused(**entry)


def unmatched(exceptions: Iterable[Excused], addresses: Iterable[str]) -> list[str]:
    """Patterns that no check has."""
    known = list(addresses)
    return [one.check for one in exceptions if not any(one.covers(address) for address in known)]
