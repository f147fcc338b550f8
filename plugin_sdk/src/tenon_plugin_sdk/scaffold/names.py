"""What a new plugin is called: one word for the platform, and from it the distribution, the module and the classes.

A name is refused where it could not be installed beside what is there. Imports no torch and no plugin.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass

from tenon_platforms.errors import ConfigError
from tenon_platforms.hardware import known_hardware
from tenon_platforms.manifest import read_manifests

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginNames:
    """name: the platform's, for `--platform`. distribution: for pip. module: for imports. title: of classes."""

    name: str
    distribution: str
    module: str
    title: str

    @classmethod
    def of(cls, name: str) -> PluginNames:
        """All names of a platform. Raises `ConfigError` for one that cannot be a platform's."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot name a platform: it takes lowercase letters, digits and single hyphens,"
                " and begins with a letter",
                remedy=_suggestion(name),
            )
        if name.startswith("tenon-"):
            raise ConfigError(f"{name!r} is the name of a package: give the platform's", remedy=_suggestion(name))
        word = name.replace("-", "_")
        title = "".join(part.capitalize() for part in name.split("-"))
        return cls(name=name, distribution=f"tenon-{name}", module=f"tenon_{word}", title=title)


def check_free(names: PluginNames) -> None:
    """Raise `ConfigError` where the platform's name, or the module's, is somebody else's."""
    if names.name in {row.platform for row in known_hardware()}:
        raise ConfigError(
            f"the platform name {names.name!r} is taken: {names.distribution} is published and has it",
            remedy=f"choose another name, such as {names.name}-2",
        )
    found = read_manifests()
    owners = {one.name: one.owner for one in found.valid} | {one.name: one.owner for one in found.broken}
    if names.name in owners:
        raise ConfigError(
            f"the platform name {names.name!r} is taken: {owners[names.name]} is installed and has it",
            remedy=f"choose another name, such as {names.name}-2",
        )
    if importlib.util.find_spec(names.module) is not None:
        raise ConfigError(
            f"the module name {names.module!r} is taken: a package of that name is installed",
            remedy=f"choose another name, such as {names.name}-2",
        )


def _suggestion(name: str) -> str:
    """The nearest name that could be one."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("tenon")).strip("-").lstrip("0123456789-")
    return f"try {plain}" if plain else "choose a word such as acme"
