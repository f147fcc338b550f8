"""Strict reading of one TOML table: every key is asked for with its type, and what nobody asked for is an error.

Errors are `ConfigError`s that name the file, the table and the key. Used for `platform.toml` and for the table of
known hardware; knows nothing of either.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
_NAMES = {str: "a string", int: "an integer", bool: "true or false", float: "a number", list: "a list", dict: "a table"}


class Table:
    """One table being read. `where` is what errors call it, such as `platform.toml [hardware]`."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = dict(data)
        self._asked: set[str] = set()
        self.where = where

    def require(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there and of this type."""
        if key not in self._data:
            raise ConfigError(f"{self.where}: key {key!r} is missing: expected {_NAMES[kind]}")
        return self._typed(key, kind)

    def get(self, key: str, kind: type[T], default: T) -> T:
        """The value of a key, or the default where it is absent."""
        if key not in self._data:
            self._asked.add(key)
            return default
        return self._typed(key, kind)

    def strings(self, key: str) -> tuple[str, ...]:
        """A list of strings; one string stands for a list of one; absent is empty."""
        value = self.raw(key, [])
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ConfigError(f"{self.where}: key {key!r} is {value!r}: expected a string or a list of strings")
        return tuple(items)

    def table(self, key: str) -> Table | None:
        """A table inside this one, or None."""
        if key not in self._data:
            self._asked.add(key)
            return None
        return Table(self._typed(key, dict), f"{self.where} [{key}]")

    def raw(self, key: str, default: Any = None) -> Any:
        """The value of any type."""
        self._asked.add(key)
        return self._data.get(key, default)

    def keys(self) -> Sequence[str]:
        """All keys there are."""
        return tuple(self._data)

    def finish(self) -> None:
        """Raise for keys that nobody asked for."""
        unknown = sorted(set(self._data) - self._asked)
        if unknown:
            raise ConfigError(f"{self.where}: unknown key {unknown[0]!r}: known are {', '.join(sorted(self._asked))}")

    def _typed(self, key: str, kind: type[T]) -> T:
        self._asked.add(key)
        value = self._data[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{self.where}: key {key!r} is {value!r}: expected {_NAMES[kind]}")
        return value


def load_toml(path: Path) -> dict[str, Any]:
    """The file's top table. Raises `ConfigError` for a file that cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
