"""Reads what `tenon ops record` wrote: one safetensors file with JSON in its metadata under `tenon_op_cases`, format 1.

Specs are found by class name among the contract's, and a field the contract does not have is an error: a newer core
recorded it. Nothing in a file names code.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import typing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

import tenon_platforms.ops as contract_ops
from tenon_platforms.errors import ConfigError
from tenon_platforms.ops.attention import AttentionSpec
from tenon_platforms.ops.spec import Spec
from tenon_platforms.ops.weights import GatedMLPWeights, LinearWeights, MoEWeights, NormedWeights

FORMAT = 1
KEY = "tenon_op_cases"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCase:
    """One call of an op. inputs: host tensors by argument. weights: as a checkpoint holds them, or None.

    attention: of a KV write, whose cache it writes. rows: of attention, (tokens before, tokens now).
    """

    id: str
    spec: Spec
    inputs: dict[str, Tensor]
    weights: Any
    attention: AttentionSpec | None = None
    rows: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class CaseFile:
    """A file's header; `case` reads the tensors of one case. Raises `ConfigError` for what cannot be read."""

    path: Path
    header: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        try:
            with safe_open(self.path, framework="pt") as held:
                text = (held.metadata() or {}).get(KEY)
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{self.path} cannot be read as recorded op cases: {error}", remedy="tenon ops record MODEL -o FILE"
            ) from error
        if text is None:
            raise ConfigError(f"{self.path} is a safetensors file without op cases", remedy="tenon ops record MODEL")
        try:
            self.header = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{self.path}: its cases are no JSON: {error}") from error
        if not isinstance(self.header, dict) or self.header.get("format") != FORMAT:
            found = self.header.get("format") if isinstance(self.header, dict) else self.header
            raise ConfigError(
                f"{self.path} has cases of format {found!r}, this kit reads {FORMAT}",
                remedy="record and replay with the same version of Tenon",
            )

    def ids(self) -> list[str]:
        """Every case's id, in order."""
        return [str(entry["id"]) for entry in self.header["cases"]]

    def case(self, number: int) -> RecordedCase:
        """One case with its tensors."""
        entry = self.header["cases"][number]
        try:
            with safe_open(self.path, framework="pt") as held:
                return RecordedCase(
                    id=entry["id"],
                    spec=spec_of(entry["spec"]),
                    inputs={name: held.get_tensor(key) for name, key in entry["inputs"].items()},
                    weights=None if entry["weights"] is None else _weights(entry["weights"], held),
                    attention=None if entry["attention"] is None else _attention(entry["attention"]),
                    rows=tuple((before, now) for before, now in entry["rows"]),
                )
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            raise ConfigError(
                f"{self.path}: case {entry.get('id')} cannot be read: {type(error).__name__}: {error}",
                remedy="record it anew with this version of Tenon",
            ) from error


def spec_of(data: dict[str, Any]) -> Spec:
    """The inverse of `Spec.to_dict`. Raises `ValueError` for a class or a field that this contract does not have."""
    known = _spec_classes()
    name, given = data["spec"], {key: value for key, value in data.items() if key != "spec"}
    if name not in known:
        raise ValueError(f"this contract has no spec {name!r}: it was recorded by another version")
    cls = known[name]
    if unknown := sorted(set(given) - {item.name for item in dataclasses.fields(cls)}):
        raise ValueError(f"{name} has no field {', '.join(unknown)} in this contract: it was recorded by a newer one")
    hints = typing.get_type_hints(cls)
    return cls(**{key: _value(value, hints[key]) for key, value in given.items()})


def _spec_classes() -> dict[str, type[Spec]]:
    """Every spec of the contract by class name."""
    for module in iter_modules(contract_ops.__path__):
        if not module.name.endswith("_reference"):
            import_module(f"{contract_ops.__name__}.{module.name}")
    found: dict[str, type[Spec]] = {}
    waiting: list[type[Spec]] = [Spec]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith(f"{contract_ops.__name__}."):
            found[cls.__name__] = cls
    return found


def _value(value: Any, hint: Any) -> Any:
    if isinstance(value, dict) and "spec" in value:
        return spec_of(value)
    if isinstance(value, list):
        inner = (typing.get_args(hint) or (Any,))[0]
        return tuple(_value(item, inner) for item in value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    return value


def _attention(data: dict[str, Any]) -> AttentionSpec:
    found = spec_of(data)
    if not isinstance(found, AttentionSpec):
        raise ValueError(f"{type(found).__name__} is no attention spec")
    return found


def _weights(tree: dict[str, Any], held: Any) -> Any:
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return held.get_tensor(value)
    if kind == "part":
        return {name: held.get_tensor(key) for name, key in value.items()}
    if kind == "linear":
        bias = None if value["bias"] is None else held.get_tensor(value["bias"])
        return LinearWeights(parts=tuple(_weights(part, held) for part in value["parts"]), bias=bias)
    if kind == "gated_mlp":
        return GatedMLPWeights(**{name: _weights(part, held) for name, part in value.items()})
    if kind == "normed":
        return NormedWeights(norm=held.get_tensor(value["norm"]), then=_weights(value["then"], held))
    if kind == "moe":
        experts = {name: _weights(value[name], held) for name in ("gate", "up", "down")}
        return MoEWeights(router=held.get_tensor(value["router"]), **experts)
    raise ValueError(f"unknown kind of weights {kind!r}")
