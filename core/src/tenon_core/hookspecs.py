"""Where third parties come in: entry-point groups and what each entry must be. The defaults use the same door.

An entry point names a factory; it is loaded when an operator asks for it by name, or when a checkpoint's architecture
(models) or chat template (parsers) is to be matched. Listing imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tenon_platforms.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint, EntryPoints

SCHEDULERS = "tenon.schedulers"  # name -> factory(SchedulerContext) -> Scheduler
BLOCK_ALLOCATORS = "tenon.block_allocators"  # name -> factory(num_blocks=int) -> BlockAllocator
MODELS = "tenon.models"  # family name -> models.family.Family, or a zero-argument function that returns one
QUANTIZATION = "tenon.quantization"  # quant_method -> function(its configuration) -> quantization.module.Method
TOOL_PARSERS = "tenon.tool_parsers"  # name -> serving.parsers.formats.base.ToolFormat, or a function that returns one
REASONING_PARSERS = "tenon.reasoning_parsers"  # the same for ReasoningFormat
GROUPS = (SCHEDULERS, BLOCK_ALLOCATORS, MODELS, QUANTIZATION, TOOL_PARSERS, REASONING_PARSERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One entry point: what it is called, where it lives, who brought it."""

    name: str
    target: str
    distribution: str
    entry: EntryPoint

    def load(self) -> Any:
        """Import and return the object; raises `PluginError` with the cause."""
        try:
            return self.entry.load()
        except Exception as error:
            raise PluginError(
                f"{self.entry.group} entry {self.name!r} ({self.target}, from {self.distribution}) does not load:"
                f" {type(error).__name__}: {error}",
                remedy=f"reinstall or remove {self.distribution}",
            ) from error


@cache
def installed_entries() -> EntryPoints:
    """All entry points of this installation. One look at its distributions serves every group."""
    from importlib_metadata import entry_points  # not for who only asks for names of groups

    return entry_points()


@cache
def registrations(group: str) -> dict[str, Registration]:
    """All entries of a group by name; two owners of one name raise `PluginError` naming both."""
    found: dict[str, Registration] = {}
    for entry in installed_entries().select(group=group):
        owner = entry.dist.name if entry.dist is not None else "unknown"
        known = found.get(entry.name)
        if known is not None and known.target != entry.value:
            raise PluginError(
                f"{group} entry {entry.name!r} is registered twice: by {known.distribution} ({known.target}) and by"
                f" {owner} ({entry.value})",
                remedy="uninstall one of them",
            )
        found[entry.name] = Registration(name=entry.name, target=entry.value, distribution=owner, entry=entry)
    return found


def load_registered(group: str, name: str) -> Any:
    """The object registered as `name`; raises `ConfigError` listing what there is."""
    found = registrations(group)
    if name not in found:
        known = ", ".join(sorted(found)) or "(none)"
        raise ConfigError(f"{name!r} is not registered in {group}: registered are {known}")
    return found[name].load()
