"""Which family serves an architecture: the entry-point group `tenon.models`, ours and third parties' alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon_core.hookspecs import MODELS, registrations
from tenon_platforms.errors import ConfigError, PluginError

from .family import Family


def families() -> dict[str, Family]:
    """Every registered family by name."""
    loaded = {}
    for name, registration in sorted(registrations(MODELS).items()):
        found = registration.load()
        family = found if isinstance(found, Family) else found()
        if not isinstance(family, Family):
            raise PluginError(f"{MODELS} entry {name!r} of {registration.distribution} is no model family: {found!r}")
        loaded[name] = family
    return loaded


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that serves `config["architectures"]`; raises `ConfigError` listing what is served."""
    wanted = [str(name) for name in config.get("architectures") or ()]
    owners: dict[str, Family] = {}
    for family in families().values():
        for name in family.architectures:
            if name in owners:
                raise PluginError(
                    f"architecture {name!r} is claimed by two families: {owners[name].name!r} and {family.name!r}",
                    remedy="uninstall one of them",
                )
            owners[name] = family
    for name in wanted:
        if name in owners:
            return owners[name]
    raise ConfigError(
        f"architecture {', '.join(wanted) or '(none named)'} is not supported: supported are"
        f" {', '.join(sorted(owners))}",
        remedy="use another model, or install a plugin that brings this architecture (entry-point group tenon.models)",
    )
