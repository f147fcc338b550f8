"""Manifests: what every installed platform says of itself, read without importing anything.

A distribution lists its package in the entry-point group `tenon.platforms` (`NAME = "package.of.the.platform"`) and
ships `platform.toml` in that package:

    name = "thing"                          # the same as the entry point's
    contract = ">=0.1,<1"                   # versions of this contract it was built for
    device_kind = "thing"                   # two platforms of one kind compete for the same devices
    entry = "tenon_thing.platform:ThingPlatform"
    priority = 0                            # optional; the higher wins among platforms of one kind
    fallback = false                        # optional; runs on the host's processor, needs no hardware
    hidden = false                          # optional; only ever selected by name
    extra = "thing"                         # optional; `pip install tenon-core[thing]`
    remedy = "install the driver from ..."  # optional; added to errors when it does not load
    docs = "https://..."                    # optional
    [hardware]                              # required unless fallback or hidden; expressions: see `signs.py`
    present = {any = [{pci = {vendor = "0x1234", class = ["0x1200"]}}, {node = "/dev/thing[0-9]*"}]}
    usable = {node = "/dev/thing[0-9]*"}    # optional; what a process needs to reach it
    inaccessible = "start the container with --device /dev/thing0"  # optional
    visibility = {variables = ["THING_VISIBLE_DEVICES"], none = ["-1"]}  # optional
    [options.key]                           # optional; --platform-opt thing.key=VALUE
    type = "int"                            # bool, int, float or str; then default, choices, help

Unknown keys are errors, except in a manifest for another contract version, which is merely incompatible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from .errors import ConfigError, PluginError
from .hardware import HardwareSigns, parse_hardware
from .manifest_files import GROUP, PlatformEntry, find_manifest_file, platform_entries
from .option_schema import OptionSpec, parse_option_schema
from .toml_table import Table, load_toml
from .version import contract_version_text

OWN_DISTRIBUTION = "tenon-platforms"
BUILTINS = ("reference", "null")
REFERENCE = "reference"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One platform's static data, and the distribution that brought it. hardware is not part of `to_dict`."""

    name: str
    distribution: str
    version: str
    contract: str
    device_kind: str
    entry: str
    path: str
    priority: int = 0
    fallback: bool = False
    hidden: bool = False
    extra: str = ""
    remedy: str = ""
    docs: str = ""
    options: tuple[OptionSpec, ...] = ()
    hardware: HardwareSigns | None = None

    @property
    def owner(self) -> str:
        """`distribution version`, as messages name it."""
        return f"{self.distribution} {self.version}"

    def accepts_contract(self, version: str | None = None) -> bool:
        """Whether the range covers a contract version, this one by default."""
        return accepts(self.contract, version or contract_version_text())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for plans and workers, which do not look for hardware again."""
        data = asdict(self)
        del data["hardware"]
        data["options"] = [{**option, "choices": list(option["choices"])} for option in data["options"]]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Manifest:
        """The inverse of `to_dict`, without hardware signs."""
        options = tuple(OptionSpec(**{**item, "choices": tuple(item["choices"])}) for item in data["options"])
        return cls(**{**data, "options": options})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPlugin:
    """An installed platform whose manifest cannot be used. hardware and device_kind: where they could still be read."""

    name: str
    distribution: str
    version: str
    reason: str
    path: str = ""
    device_kind: str = ""
    fallback: bool = False
    hardware: HardwareSigns | None = None

    @property
    def owner(self) -> str:
        """`distribution version`, as messages name it."""
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """All installed platforms."""

    valid: tuple[Manifest, ...]
    broken: tuple[BrokenPlugin, ...] = ()

    @property
    def every(self) -> tuple[Manifest | BrokenPlugin, ...]:
        """All, the valid ones first."""
        everyone: list[Manifest | BrokenPlugin] = [*self.valid]
        return (*everyone, *self.broken)

    def named(self, name: str) -> Manifest | BrokenPlugin | None:
        """The platform of this name."""
        return next((item for item in self.every if item.name == name), None)


def accepts(contract: str, version: str) -> bool:
    """Whether a PEP 440 range covers a contract version MAJOR.MINOR."""
    return SpecifierSet(contract).contains(version, prereleases=True)


def read_manifests(path: Sequence[str] | None = None) -> Manifests:
    """Every installed platform and the built-in ones. path: folders to look in, `sys.path` by default.

    Raises `PluginError` where two distributions bring one name. A manifest that cannot be used stops no other.
    """
    valid = [_builtin(name) for name in BUILTINS]
    broken: list[BrokenPlugin] = []
    owners = {manifest.name: manifest.owner for manifest in valid}
    for entry in sorted(platform_entries(path), key=lambda entry: entry.name):
        _claim(owners, entry)
        item = _read(entry, path)
        if isinstance(item, Manifest):
            valid.append(item)
        else:
            broken.append(item)
    return Manifests(valid=tuple(valid), broken=tuple(broken))


def _claim(owners: dict[str, str], entry: PlatformEntry) -> None:
    owner = f"{entry.distribution} {entry.version}"
    if entry.name in owners:
        raise PluginError(
            f"two installed distributions bring a platform named {entry.name!r}: {owners[entry.name]} and {owner}",
            remedy=f"pip uninstall {entry.distribution} (or the other one)",
        )
    owners[entry.name] = owner


def _builtin(name: str) -> Manifest:
    file = Path(__file__).parent / "builtin" / name / "platform.toml"
    return parse_manifest(
        load_toml(file), name=name, distribution=OWN_DISTRIBUTION, version=contract_version_text(), path=file
    )


def _read(entry: PlatformEntry, search: Sequence[str] | None) -> Manifest | BrokenPlugin:
    """The manifest of one entry point, or what is wrong with it."""
    file: Path | None = None
    data: dict[str, Any] = {}
    try:
        if entry.problem:
            raise ConfigError(entry.problem)
        file = find_manifest_file(entry, search)
        data = load_toml(file)
        return parse_manifest(data, name=entry.name, distribution=entry.distribution, version=entry.version, path=file)
    except ConfigError as error:
        return BrokenPlugin(
            name=entry.name,
            distribution=entry.distribution,
            version=entry.version,
            reason=error.message,
            path=str(file or ""),
            device_kind=_text(data.get("device_kind")),
            fallback=data.get("fallback") is True,
            hardware=_salvage(data),
        )


def _salvage(data: dict[str, Any]) -> HardwareSigns | None:
    """The hardware signs of a manifest that is wrong elsewhere: they decide whether its being broken is fatal."""
    if data.get("hidden") is True or data.get("fallback") is True or not isinstance(data.get("hardware"), dict):
        return None
    try:
        return parse_hardware(Table(data["hardware"], "[hardware]"))
    except ConfigError:
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def parse_manifest(data: dict[str, Any], *, name: str, distribution: str, version: str, path: Path) -> Manifest:
    """Validate a manifest's data. Raises `ConfigError` that names the file and the key."""
    table = Table(data, str(path))
    contract = _contract(table)
    fallback, hidden = table.get("fallback", bool, False), table.get("hidden", bool, False)
    hardware_table = table.table("hardware")
    hardware = None if hardware_table is None else parse_hardware(hardware_table)
    manifest = Manifest(
        name=_matching(table, "name", _NAME, "lower case letters, digits, - and _"),
        distribution=distribution,
        version=version,
        contract=contract,
        device_kind=_matching(table, "device_kind", _NAME, "lower case letters, digits, - and _"),
        entry=_matching(table, "entry", _ENTRY, "module:object"),
        path=str(path),
        priority=table.get("priority", int, 0),
        fallback=fallback,
        hidden=hidden,
        extra=table.get("extra", str, ""),
        remedy=table.get("remedy", str, ""),
        docs=table.get("docs", str, ""),
        options=parse_option_schema(table.table("options")),
        hardware=hardware,
    )
    if manifest.name != name:
        raise ConfigError(f"{table.where}: key 'name' is {manifest.name!r}: the entry point in {GROUP} says {name!r}")
    if manifest.accepts_contract():
        table.finish()
        if hardware_table is not None:
            hardware_table.finish()
    if hardware is None and not (fallback or hidden):
        raise ConfigError(
            f"{table.where} [hardware]: key 'present' is missing: a platform that is neither fallback nor hidden says"
            " by which signs its hardware is seen"
        )
    return manifest


def _contract(table: Table) -> str:
    text = table.require("contract", str)
    try:
        if not text.strip() or not SpecifierSet(text):
            raise InvalidSpecifier(text)
    except InvalidSpecifier as error:
        raise ConfigError(
            f"{table.where}: key 'contract' is {text!r}: expected a range of versions such as '>=0.1,<1'"
        ) from error
    return text


def _matching(table: Table, key: str, pattern: re.Pattern[str], form: str) -> str:
    text = table.require(key, str)
    if not pattern.fullmatch(text):
        raise ConfigError(f"{table.where}: key {key!r} is {text!r}: expected {form}")
    return text
