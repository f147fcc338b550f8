"""`--platform-opt NAME.KEY=VALUE`: options of one platform, typed by the schema in its manifest.

Options of platforms that are not selected are noted and ignored, so that one command file serves every machine; an
unknown key of the selected platform is an error that lists the known ones. Torch-free, imports no plugin.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .errors import ConfigError
from .toml_table import Table

if TYPE_CHECKING:
    from .manifest import Manifest

OptionType = Literal["bool", "int", "float", "str"]
OptionValue = bool | int | float | str
_TYPES: dict[str, type[Any]] = {"bool": bool, "int": int, "float": float, "str": str}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_KEY = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """One option of a platform. default: None where there is none. choices: empty where any value will do."""

    key: str
    type: OptionType
    default: OptionValue | None = None
    choices: tuple[OptionValue, ...] = ()
    help: str = ""

    def parse(self, text: str, flag: str) -> OptionValue:
        """The typed value of a text. Raises `ConfigError` that names the flag as it was given."""
        value = self._convert(text)
        if value is None:
            raise ConfigError(f"{flag}: {text!r} is not {_DESCRIBED[self.type]}", remedy=self.usage())
        if self.choices and value not in self.choices:
            raise ConfigError(f"{flag}: {text!r} is not one of {', '.join(map(str, self.choices))}")
        return value

    def usage(self) -> str:
        """One line for help: key, type, choices, default, what it does."""
        choices = f", one of {', '.join(map(str, self.choices))}" if self.choices else ""
        default = "" if self.default is None else f", default {self.default}"
        return f"{self.key} ({self.type}{choices}{default}){': ' + self.help if self.help else ''}"

    def _convert(self, text: str) -> OptionValue | None:
        if self.type == "str":
            return text
        if self.type == "bool":
            return _BOOLS.get(text.lower())
        try:
            number = int(text) if self.type == "int" else float(text)
        except ValueError:
            return None
        return number if math.isfinite(number) else None


_DESCRIBED = {"bool": "true or false", "int": "an integer", "float": "a finite number", "str": "a text"}


def parse_option_schema(table: Table | None) -> tuple[OptionSpec, ...]:
    """The schema from a manifest's `[options.KEY]` tables. Raises `ConfigError`."""
    if table is None:
        return ()
    return tuple(_parse_spec(key, table) for key in table.keys())  # noqa: SIM118 - not a mapping


def _parse_spec(key: str, options: Table) -> OptionSpec:
    table = options.table(key)
    assert table is not None
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{options.where}: option {key!r} must be lower case letters, digits and _")
    type_name = table.require("type", str)
    if type_name not in _TYPES:
        raise ConfigError(f"{table.where}: key 'type' is {type_name!r}: expected one of {', '.join(_TYPES)}")
    default, choices = table.raw("default"), table.raw("choices", [])
    if not isinstance(choices, list):
        raise ConfigError(f"{table.where}: key 'choices' is {choices!r}: expected a list")
    values = [_value(item, type_name, f"{table.where}: key 'choices'") for item in choices]
    if default is not None:
        default = _value(default, type_name, f"{table.where}: key 'default'")
        if values and default not in values:
            raise ConfigError(f"{table.where}: key 'default' is {default!r}: it is not among the choices")
    help_text = table.get("help", str, "")
    table.finish()
    return OptionSpec(key=key, type=type_name, default=default, choices=tuple(values), help=help_text)  # type: ignore[arg-type]


def _value(value: Any, type_name: str, where: str) -> OptionValue:
    if type_name == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not _TYPES[type_name]:
        raise ConfigError(f"{where} holds {value!r}: expected {_DESCRIBED[type_name]}")
    result: OptionValue = value
    return result


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
