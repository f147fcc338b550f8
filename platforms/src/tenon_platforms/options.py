"""`--platform-opt NAME.KEY=VALUE`: options of one platform, typed by the schema in its manifest.

Options of platforms that are not selected are noted and ignored, so that one command file serves every machine; an
unknown key of the selected platform is an error that lists the known ones. Torch-free, imports no plugin.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import ConfigError
from .manifest import Manifest
from .option_schema import OptionValue


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformOption:
    """One `--platform-opt` as it was given, split."""

    platform: str
    key: str
    text: str

    @property
    def flag(self) -> str:
        """The flag as an operator reads it."""
        return f"--platform-opt {self.platform}.{self.key}"


def split_platform_option(text: str) -> PlatformOption:
    """Split `NAME.KEY=VALUE`; the value may be empty or hold further `=`. Raises `ConfigError`."""
    name, equals, value = text.partition("=")
    platform, dot, key = name.strip().partition(".")
    if not (equals and dot and platform and key):
        raise ConfigError(f"--platform-opt {text!r} is not of the form NAME.KEY=VALUE")
    return PlatformOption(platform=platform, key=key, text=value.strip())


def parse_platform_options(texts: Iterable[str], selected: Manifest) -> tuple[dict[str, OptionValue], tuple[str, ...]]:
    """The selected platform's options, defaults filled in, and notes on options that were not used.

    Raises `ConfigError` for a malformed text, an unknown key of the selected platform, or a value of another type.
    """
    specs = {spec.key: spec for spec in selected.options}
    values = {spec.key: spec.default for spec in selected.options if spec.default is not None}
    notes: list[str] = []
    given: dict[str, str] = {}
    for option in map(split_platform_option, texts):
        if option.platform != selected.name:
            notes.append(f"{option.flag}={option.text} is not used: the selected platform is {selected.name!r}")
            continue
        if option.key not in specs:
            raise _unknown(option, selected)
        if option.key in given:
            notes.append(f"{option.flag}={given[option.key]} is not used: a later one says {option.text!r}")
        given[option.key] = option.text
        values[option.key] = specs[option.key].parse(option.text, option.flag)
    return values, tuple(notes)


def _unknown(option: PlatformOption, selected: Manifest) -> ConfigError:
    known = [spec.key for spec in selected.options]
    close = difflib.get_close_matches(option.key, known, n=1)
    listed = ", ".join(sorted(known)) or "(none)"
    return ConfigError(
        f"{option.flag}: platform {selected.name!r} ({selected.distribution} {selected.version}) has no option"
        f" {option.key!r}: known are {listed}",
        remedy=f"did you mean {selected.name}.{close[0]}?" if close else None,
    )
