"""What every op spec is: a frozen, keyword-only dataclass of build-time facts, torch-free and hashable.

Features travel with the spec. A field added after 0.1 is declared with `feature(default, "name")`; a value other than
its default *is* the requirement, so `requires` is derived and never written by hand. An offer made before a feature
existed does not list it and can therefore never be chosen for it.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar


def feature(default: Any, name: str) -> Any:
    """A spec field whose non-default value requires the feature `name` of the kernel that serves it."""
    return dataclasses.field(default=default, metadata={"feature": name})


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Base of all specs. Subclasses set `op`, the id under which kernels are offered."""

    op: ClassVar[str] = ""

    @property
    def requires(self) -> frozenset[str]:
        """Names of the features this spec needs: its own and, for a composite, its parts'."""
        return frozenset(_features(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain data: strings, numbers, lists, dicts. Nested specs carry their class name under `spec`."""
        return {
            "spec": type(self).__name__,
            **{f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)},
        }

    def fingerprint(self) -> str:
        """SHA-256 of the spec's plain form, in hex: equal specs on any machine give equal fingerprints."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def summary(self) -> str:
        """One line for tables: the fields that differ from their defaults."""
        shown = [
            f"{f.name}={_short(getattr(self, f.name))}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default and getattr(self, f.name) is not None
        ]
        return f"{self.op or type(self).__name__}({', '.join(shown)})"


def _features(value: Any) -> Iterator[str]:
    if isinstance(value, Spec):
        for item in dataclasses.fields(value):
            held = getattr(value, item.name)
            name = item.metadata.get("feature")
            if name is not None and held != item.default:
                yield name
            yield from _features(held)
    elif isinstance(value, tuple):
        for held in value:
            yield from _features(held)


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.to_dict()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(held) for held in value]
    if isinstance(value, dict):
        return {str(key): _plain(held) for key, held in value.items()}
    return value


def _short(value: Any) -> str:
    if isinstance(value, Spec):
        return value.summary()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_short(held) for held in value) + "]"
    return str(value)
