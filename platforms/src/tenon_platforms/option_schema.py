"""What options a platform takes: the schema in its manifest, and a value's text made into a value. Torch-free."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from .errors import ConfigError
from .toml_table import Table

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
